// Package filecopy copies the content of a file: by sharing its blocks (FICLONE), in the kernel
// (copy_file_range) or through a buffer. Holes and blocks of zeros stay holes.
//
// It copies content only; attributes are those of package tree.
package filecopy

// Package extent reads which parts of a file have blocks, and which blocks: from FIEMAP or, on a
// filesystem without it, from SEEK_DATA and SEEK_HOLE.
//
// It contains the ioctl and its interpretation; it does not read file contents.
package extent

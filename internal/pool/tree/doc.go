// Package tree copies, measures and removes directory trees that an untrusted user may change at
// the same time.
//
// It opens each name once, follows no symlink, opens no device or FIFO and crosses no mount. The
// number of open files and the memory that it needs do not depend on the tree. It does not know
// pools; errors name the path within the tree.
package tree

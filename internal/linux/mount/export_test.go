package mount

import (
	"fmt"
	"os"
)

// ReadMountinfo makes dirs observe as on a kernel without statmount.
func ReadMountinfo(dirs *AllowedDirs) { dirs.observer = &observer{} }

// ReadsStatmount says whether this kernel's statmount is in use.
func ReadsStatmount(dirs *AllowedDirs) bool { return dirs.observer.statmount }

// ListFromMountinfo is List on a kernel without statmount.
func ListFromMountinfo() ([]Point, error) { return (&observer{}).list() }

// ParentPath is where the opened parent is now, as the kernel says.
func ParentPath(target *Target) (string, error) {
	return os.Readlink(target.link())
}

// WithoutValues returns a kernel's message without mount option values.
func WithoutValues(options Options, text string) string { return options.redact(text) }

// ContextsAsText names the flags that a btrfs gets from Linux before 6.8, and reports whether there are contexts.
func ContextsAsText(options Options) (string, bool) {
	text, found := options.contextsAsText()

	return text.String(), found
}

// Seal makes the tree's filesystem and its mount read-only, as NewReadOnlyTmpfs does.
func Seal(tree *Detached) error { return tree.makeReadOnly() }

// Create makes a file in the tree, which is attached nowhere yet, open for writing.
func Create(tree *Detached, name string) (*os.File, error) {
	return os.Create(fmt.Sprintf("/proc/self/fd/%d/%s", tree.root.Fd(), name))
}

// Package pool stores volumes and snapshots in a directory of a filesystem, each as an image (a
// sparse raw file) or as a directory. Package layout names the files.
//
// Methods state the result that is wanted, so that a call repeated after a crash completes the
// first one. A pool is opened by its path, through symlinks, too. Whatever is in it is opened, renamed and
// removed beneath its directory (os.Root), by names that are made of checked ids only, and no symlink is
// followed. Decision 0055 has what is done by a path: among it Probe and Capacity, which are about what the
// path leads to now, and tools, for a file that this package has made or opened before.
//
// A copy is made in scratch and renamed into place when it is complete and durable, so an
// incomplete one is never visible. Where the filesystem lets files share blocks (FICLONE) an image
// is copied at one point in time, otherwise extent by extent; a directory is copied file by file, unless
// it is a subvolume, of which the copy is a snapshot. Package quota makes and limits directories.
// Several images of a pool on btrfs are copied at one point in time (GroupCopy).
//
// # Locks
//
// Locks are flock(2) locks, exclusive unless said otherwise. A filesystem without them is refused
// (ErrNoLocks), because two nodes could then attach one image.
//
//   - Scratch: the process that makes an object locks the scratch image of its id until the object
//     is in place. An image is replaced under this lock only.
//   - Image: an image is locked while it is attached (internal/linux/loop), shared if that is
//     read-only, and by a Filling from before the check that it is blank until the new image has its
//     name. Its content changes under this lock only. Its size may grow without it (Images.Grow).
//
// The locks are taken in this order: scratch, then image. A lock belongs to the file, not to its
// name: the image may be replaced or removed between its opening and its locking, so the name is
// compared after an image is locked (Images.IsCurrent). Removal takes no lock; the controller removes
// only what is attached nowhere (CheckDetached).
//
// The package contains storage only: it does not know who uses a volume, mounts nothing and decides
// no gRPC code. Its subpackages copy file contents (filecopy), copy, measure and remove directory
// trees (tree), compare snapshots (changedblocks), retry removals (removal) and give a pool a
// filesystem of its own (embedded).
package pool

// Package pool is where the bytes of volumes live: one directory on a
// filesystem, with an image or a directory for each volume and each snapshot.
//
//	<pool>/images/<id>.img       a sparse raw file
//	<pool>/directories/<id>/     a plain directory
//	<pool>/snapshots/<id>.img    an image that nobody changes, of a volume with an image
//	<pool>/snapshots/<id>/       a directory that nobody changes, of a volume with a directory
//	<pool>/scratch/<id>.img      an image that is being made and is in no place yet; whoever makes it has it locked
//	<pool>/scratch/<id>/         a directory that is being made, with an empty <id>.img to lock
//	<pool>/removing/<id>/        a directory that is removed and not gone yet
//	<pool>/attributes/<id>.json  what ControllerModifyVolume has set, for the nodes
//	<pool>/ephemeral/            a pool of the same shape for inline ephemeral volumes
//	<pool>/controller.lock       locked by the pool's controller, whose name is in it
//
// Every verb states what shall be so, not what to do, so that a retry after a
// crash is the same call again. All paths are resolved beneath the pool
// (os.Root) and made of checked ids only, and no symlink is followed.
//
// A copy is made in scratch and renamed into place when it is complete and
// durable, so nobody ever sees half of one. Where the filesystem lets files
// share blocks (FICLONE) an image is copied in one instant, else extent by
// extent; a directory always file by file.
//
// # Locks
//
// Locks are flock locks, exclusive unless said otherwise. A filesystem without
// them is refused (ErrNoLocks): nothing would keep two nodes from one image.
//
//   - Scratch: the scratch image of an id is locked by the process that makes
//     anything under that id, until it is in place. An image is replaced under this
//     lock only.
//   - Image: an image is locked for as long as it is attached (internal/linux/loop), shared
//     if that is read-only, and by FillImage from the check that it is blank until
//     the new image is in its place. Its content changes under this lock only. Its
//     size may grow without it (GrowImage).
//
// The locks are taken in this order: scratch, then image. A lock belongs to a file
// and not to its name, so after an image is locked its name is compared (IsCurrentImage):
// the image may have been replaced or removed between its opening and its locking.
// Removal takes no lock; the controller removes what is attached nowhere.
//
// What may enter: bytes, space and their places. Nothing here knows who uses a
// volume, mounts anything or decides a gRPC code.
package pool

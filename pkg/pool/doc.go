// Package pool is where the bytes of volumes live: one directory on a
// filesystem, with an image or a directory for each volume.
//
//	<pool>/images/<id>.img       a sparse raw file
//	<pool>/directories/<id>/     a plain directory
//	<pool>/scratch/<id>.img      an image that is being made and is not yet a volume's
//	<pool>/attributes/<id>.json  what ControllerModifyVolume has set, for the nodes
//	<pool>/ephemeral/            a pool of the same shape for inline ephemeral volumes
//
// Every verb states what shall be so, not what to do, so that a retry after a
// crash is the same call again. All paths are resolved beneath the pool
// (os.Root) and made of checked ids only.
//
// What may enter: bytes, space and their places. Nothing here knows who uses a
// volume, mounts anything or decides a gRPC code.
package pool

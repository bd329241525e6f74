// Package layout names the files and directories of a pool.
//
//	<pool>/images/<id>.img       the image of a volume: a sparse raw file
//	<pool>/directories/<id>/     the directory of a volume
//	<pool>/snapshots/<id>.img    the image of a snapshot
//	<pool>/snapshots/<id>/       the directory of a snapshot
//	<pool>/scratch/<id>.img      an image that is being made, locked by the process that makes it
//	<pool>/scratch/<id>/         a directory that is being made; <id>.img is its lock file
//	                             or, with the id of a group, a snapshot of the subvolume with the pool
//	<pool>/scratch/<id>.links/   the hard links of a directory that is being copied
//	<pool>/removing/<id>/        directories whose removal is not complete
//	<pool>/attributes/<id>.json  the mutable parameters of a volume
//	<pool>/ephemeral/            a pool of the same layout for inline ephemeral volumes
//	<pool>/controller.lock       locked by the pool's controller, which writes its name into it
//	<pool>/pool.json             the pool's identity
//
// An embedded pool is in a filesystem of its own, whose image is in the registered directory:
//
//	<directory>/pool.img         the image of the pool's filesystem
//	<directory>/pool.img.making  the same until mkfs has ended
//	<directory>/mounted/         its mount target, which is <pool>
//
// The package contains names only; it does not access files.
package layout

import "path/filepath"

// Directories of a pool.
const (
	Images      = "images"
	Directories = "directories"
	Snapshots   = "snapshots"
	Scratch     = "scratch"
	Removing    = "removing"
	Mutable     = "attributes"
	Ephemeral   = "ephemeral"
)

// Files of a pool.
const (
	ControllerLock = "controller.lock"
	Identity       = "pool.json"
)

// Files and directories around an embedded pool.
const (
	EmbeddedImage        = "pool.img"
	EmbeddedImageScratch = EmbeddedImage + ".making"
	EmbeddedMountPoint   = "mounted"
)

// Suffixes that a file's name has behind the id of its volume or snapshot.
const (
	ImageSuffix   = ".img"
	MutableSuffix = ".json"
	// MutableScratchSuffix is for mutable parameters that are being written.
	MutableScratchSuffix = ".new"
	// LinksSuffix is for the directory of hard links of a copy in Scratch.
	LinksSuffix = ".links"
)

// Subdirectories returns the directories that a pool which is served has.
func Subdirectories() []string {
	return []string{Images, Directories, Snapshots, Scratch, Removing, Mutable}
}

// VolumeDirectories returns the directories, relative to the pool's, whose entries are volumes or
// snapshots, those of ephemeral volumes included.
func VolumeDirectories() []string {
	return []string{
		Images, Directories, Snapshots,
		filepath.Join(Ephemeral, Images), filepath.Join(Ephemeral, Directories),
	}
}

// ImageDirectories returns the directories with the images of volumes that the pool in this
// directory has: persistent and ephemeral ones.
func ImageDirectories(pool string) []string {
	return []string{filepath.Join(pool, Images), filepath.Join(pool, Ephemeral, Images)}
}

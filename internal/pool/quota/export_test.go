package quota

// AnyOnFilesystem reports whether one of the directories is on the filesystem with this UUID.
var AnyOnFilesystem = anyOnFilesystem

// IsForeign reports whether a subvolume is not inside of a volume, and whether it exists.
func IsForeign(made Directories, id, volume uint64) (foreign, exists bool, err error) {
	return made.(*subvolumes).isForeign(id, volume)
}

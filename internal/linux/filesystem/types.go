package filesystem

import (
	"cmp"
	"io"
	"os"
	"slices"
)

// fsType is the description of one supported filesystem.
type fsType struct {
	name string
	// new returns the implementation, which starts its tools with run.
	new func(run Runner) Filesystem
	// magic identifies the superblock; it is magicOffset bytes from the start.
	magic       string
	magicOffset int64
	// uuidOffset is where the superblock has the UUID that blkid prints.
	uuidOffset int64
	// mkfsOptions are the options that a user may give to mkfs.
	mkfsOptions *mkfsGrammar
	// kernelNeeds says for people what mkfs makes with these options that a kernel may not mount.
	kernelNeeds string
	// personalize gives a newly made filesystem a UUID of its own (Templates).
	personalize personalizer
	// reserveZeros reserves what mkfs has allocated for zeros: as holes, it would be scattered
	// extents of the image once the filesystem is used.
	reserveZeros bool
	// mkfsConfiguration is the file with the defaults of mkfs, "" for none.
	mkfsConfiguration string
	// errorCounts reads what the kernel has counted of the filesystem on a loop device that is
	// mounted at root; nil where the kernel counts nothing.
	errorCounts func(device int, root *os.File) (ErrorCounts, error)
	// growthLimit reads from the superblock how large the filesystem can become; nil where there is
	// no limit below that of a file.
	growthLimit func(r io.ReaderAt) (growthLimit, error)
	// debianPackage has the programs tools.
	debianPackage string
	// tools has the filesystem's mkfs first.
	tools []string
}

// types is the table of all supported filesystems: a new one needs a file with its implementation
// and a row here.
var types = []fsType{
	{
		name: Ext4, new: func(run Runner) Filesystem { return &ext4{run: run} },
		magic: ext4Magic, magicOffset: ext4SuperOffset + ext4MagicOffset,
		uuidOffset: ext4SuperOffset + ext4UUID, mkfsOptions: &ext4Grammar,
		kernelNeeds: "the features quota and project take CONFIG_QFMT_V2", errorCounts: ext4ErrorCounts,
		personalize: personalizeExt4, mkfsConfiguration: "/etc/mke2fs.conf", growthLimit: ext4Limit,
		debianPackage: ext4Package, tools: []string{"mkfs.ext4", "e2fsck", "resize2fs", "tune2fs", "e2image"},
	},
	{
		name: XFS, new: func(run Runner) Filesystem { return &xfs{run: run} },
		magic: xfsMagic, magicOffset: 0,
		uuidOffset: xfsUUID, mkfsOptions: &xfsGrammar,
		kernelNeeds: "crc=0 takes CONFIG_XFS_SUPPORT_V4, blocks larger than a page Linux 6.12", personalize: personalizeXFS,
		debianPackage: xfsPackage, tools: []string{"mkfs.xfs", "xfs_repair", "xfs_logprint", "xfs_db", "xfs_mdrestore"},
	},
	{
		name: Btrfs, new: func(run Runner) Filesystem { return &btrfs{run: run} },
		magic: btrfsMagic, magicOffset: btrfsSuperOffset + btrfsMagicOffset,
		uuidOffset: btrfsSuperOffset + btrfsFSID, mkfsOptions: &btrfsGrammar,
		kernelNeeds: "block-group-tree takes Linux 6.1, squota 6.7, nodes smaller than a page 5.16", personalize: personalizeBtrfs,
		reserveZeros: true, errorCounts: btrfsErrorCounts,
		debianPackage: btrfsPackage, tools: []string{"mkfs.btrfs", "btrfs", "btrfstune"},
	},
}

// Names returns the names of the supported filesystems.
func Names() []string {
	names := make([]string, 0, len(types))
	for _, each := range types {
		names = append(names, each.name)
	}

	return names
}

// IsSupported reports whether a filesystem of that name is in the table.
func IsSupported(name string) bool {
	return slices.ContainsFunc(types, func(t fsType) bool { return t.name == name })
}

// inDetectionOrder is the table in the order in which Detect compares the magic numbers: by their offset. XFS has
// data of its own where ext4 has its magic; mkfs.btrfs erases the magic of the others, but their mkfs does not
// erase that of btrfs.
var inDetectionOrder = slices.SortedFunc(slices.Values(types), func(a, b fsType) int { return cmp.Compare(a.magicOffset, b.magicOffset) })

// typeByName returns the row of a filesystem.
func typeByName(name string) (fsType, bool) {
	i := slices.IndexFunc(types, func(t fsType) bool { return t.name == name })
	if i < 0 {
		return fsType{}, false
	}

	return types[i], true
}

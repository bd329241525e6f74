package embedded

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
)

// DefaultFilesystem is the filesystem of a new image unless Options name another.
const DefaultFilesystem = filesystem.XFS

// imageType is what differs between the filesystems that an image may have.
type imageType struct {
	// name is that of internal/linux/filesystem.
	name string
	// title is the name in messages.
	title string
	// mkfsOptions are for a filesystem that can reflink.
	mkfsOptions []string
	// mountFlags let space that is deleted inside go back to the host's filesystem.
	mountFlags []string
	// quotaFlag mounts the filesystem with project quotas, which limit directory volumes. Kernels
	// without them refuse it with EINVAL. Empty where no flag is needed.
	quotaFlag string
	// readOnlyAfterError means that the filesystem becomes read-only by itself after an I/O error,
	// and is mounted again for that. Where not, read-only is what another program made it.
	readOnlyAfterError bool
	// repair and findSuperblock are the commands, with %s for the image, that repair a damaged
	// filesystem and one whose superblock is overwritten.
	repair, findSuperblock string
	// tools is the implementation, of a row that typeByName returns.
	tools filesystem.Filesystem
}

// imageTypes is the table of all filesystems that an image may have.
var imageTypes = []imageType{
	{
		name: filesystem.XFS, title: "XFS", mkfsOptions: []string{"-m", "reflink=1"}, mountFlags: []string{"discard", "noatime"},
		quotaFlag: "prjquota",
		repair:    "xfs_repair -f %s", findSuperblock: "xfs_repair -f %s",
	},
	{
		// nodatacow: with checksums, btrfs turns direct writes into buffered ones (Linux 6.14), whose
		// part before a full filesystem the loop driver acknowledges as the whole. In place, an image
		// never takes more space than its size, by which pools account.
		name: filesystem.Btrfs, title: "btrfs", mountFlags: []string{"discard", "noatime", "nodatacow"}, readOnlyAfterError: true,
		repair: "btrfs check --repair %s", findSuperblock: "btrfs rescue super-recover %s",
	},
}

// Filesystems returns the names of the filesystems that an image may have.
func Filesystems() []string {
	return texts(func(t imageType) string { return t.name })
}

// typeByName returns the row of a filesystem. Error: filesystem.ErrUnknown.
func typeByName(name string) (imageType, error) {
	i := slices.IndexFunc(imageTypes, func(t imageType) bool { return t.name == name })
	if i < 0 {
		return imageType{}, fmt.Errorf("%w %q of an embedded pool; there are %s", filesystem.ErrUnknown, name, strings.Join(Filesystems(), ", "))
	}

	found := imageTypes[i]

	var err error
	found.tools, err = filesystem.ByName(name, nil)

	return found, err
}

// withQuotas calls do with the flags to mount the image with, and again without project quotas if the
// kernel has none.
func (t imageType) withQuotas(do func(flags []string) error) error {
	if t.quotaFlag != "" {
		err := do(append(slices.Clone(t.mountFlags), t.quotaFlag))
		if !errors.Is(err, unix.EINVAL) {
			return err
		}
	}

	return do(t.mountFlags)
}

// titles returns the names of the filesystems for a message about one that is none of them.
func titles() string {
	return strings.Join(texts(func(t imageType) string { return t.title }), " or ")
}

// findSuperblock returns the commands that repair an image whose superblock is overwritten, for it
// does not show which filesystem it had.
func findSuperblock(image string) string {
	return strings.Join(texts(func(t imageType) string { return fmt.Sprintf(t.findSuperblock, image) + " (" + t.title + ")" }), " or ")
}

func texts(text func(imageType) string) []string {
	made := make([]string, 0, len(imageTypes))
	for _, each := range imageTypes {
		made = append(made, text(each))
	}

	return made
}

package mount

import (
	"cmp"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
)

// Usage is what a filesystem says of its own size.
type Usage struct {
	// Bytes counts what the filesystem can hand out; its metadata may be
	// neither in Total nor in Used.
	Bytes Amount
	// Inodes is all zero for a filesystem without a number of them, as btrfs.
	Inodes Amount
	// Filesystem is the id that the kernel's events of errors have. Those with the
	// same UUID may share it.
	Filesystem [2]int32
}

// Amount is some of a filesystem. Available is what an unprivileged process can
// still get, so that Used and Available may be less than Total together.
type Amount struct {
	Total, Used, Available int64
}

// Usage asks the filesystem that is there (of stacked mounts the top one). Like
// every question to a filesystem it may hang when a server of its does.
func (p *Target) Usage() (Usage, error) {
	there, err := p.open(unix.O_PATH)
	if err != nil {
		return Usage{}, p.wrapError("measure the filesystem at", err)
	}
	defer there.Close()

	usage, err := UsageOf(there)

	return usage, p.wrapError("measure the filesystem at", err)
}

// UsageOf asks the filesystem that an open file is in, O_PATH sufficing.
func UsageOf(file *os.File) (Usage, error) {
	var stat unix.Statfs_t

	if err := eintr.Retry(func() error { return unix.Fstatfs(int(file.Fd()), &stat) }); err != nil {
		return Usage{}, fmt.Errorf("statfs: %w", err)
	}

	// Filesystems count in fragments; a few old ones leave that size out.
	size := cmp.Or(stat.Frsize, stat.Bsize)

	return Usage{
		Bytes: Amount{
			Total:     int64(stat.Blocks) * size,
			Used:      int64(stat.Blocks-stat.Bfree) * size,
			Available: int64(stat.Bavail) * size,
		},
		Inodes: Amount{
			Total:     int64(stat.Files),
			Used:      int64(stat.Files - stat.Ffree),
			Available: int64(stat.Ffree),
		},
		Filesystem: stat.Fsid.Val,
	}, nil
}

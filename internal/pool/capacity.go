package pool

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

// Capacity is the space of a pool's filesystem, in bytes.
type Capacity struct {
	Total, Available int64
	// Allocated is the space that volumes and snapshots have allocated; 0 unless it
	// was measured (Admission).
	Allocated int64
}

const (
	// A pool is nearly full if less than a twentieth of it is free, or less than 1 GiB if it is
	// larger than 20 GiB.
	nearlyFullPart  = 20
	nearlyFullBytes = 1 << 30
)

// NearlyFull reports whether an administrator should free space.
func (c Capacity) NearlyFull() bool {
	return c.Available < min(c.Total/nearlyFullPart, nearlyFullBytes)
}

// Capacity returns the space of the pool's filesystem. For an embedded pool it is limited by the
// space of the filesystem that has the pool's image.
func (p *Pool) Capacity() (own Capacity, err error) {
	defer errdefs.Wrapf(&err, "capacity of pool %q at %s", p.name, p.path)

	own, used, err := space(p.path)
	if err != nil || p.hostImage == "" {
		return own, err
	}

	return own.limitedByHost(p.hostImage, used)
}

func space(path string) (whole Capacity, used int64, err error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return Capacity{}, 0, err
	}

	whole = Capacity{Total: blocksToBytes(stat.Blocks, stat.Bsize), Available: blocksToBytes(stat.Bavail, stat.Bsize)}

	return whole, blocksToBytes(stat.Blocks-min(stat.Bfree, stat.Blocks), stat.Bsize), nil
}

// limitedByHost returns the capacity of a filesystem in a sparse file: the host filesystem must
// have space for all blocks that the file does not have yet. Blocks that are in use inside without
// being allocated in the file (of thick images) come first. Blocks of the file that are free inside
// are not counted, since discard returns them.
func (c Capacity) limitedByHost(file string, used int64) (Capacity, error) {
	info, err := os.Stat(file)
	if err != nil {
		return Capacity{}, err
	}

	host, _, err := space(file)
	if err != nil {
		return Capacity{}, err
	}

	has := allocatedBytes(info)
	// What is in the file and not in Total is the filesystem's log.
	owed := max(0, used+max(0, info.Size()-c.Total)-has)

	return Capacity{
		Total:     min(c.Total, has+host.Available),
		Available: max(0, min(c.Available, host.Available-owed)),
	}, nil
}

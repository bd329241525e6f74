package pool

import (
	"io/fs"
	"math"
	"os"
	"syscall"

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
	// statBlock is the unit of stat's blocks, whatever the filesystem's is.
	statBlock = 512

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
func (p *Pool) Capacity() (Capacity, error) { return CapacityOf(p.name, p.path, p.options.HostImage) }

// CapacityOf is Capacity of a pool that is not open, in a directory. hostImage is the image of an
// embedded one.
func CapacityOf(name, directory, hostImage string) (own Capacity, err error) {
	defer errdefs.Wrapf(&err, "capacity of pool %q at %s", name, directory)

	own, used, err := space(directory)
	if err != nil || hostImage == "" {
		return own, err
	}

	return own.limitedByHost(hostImage, used)
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

func blocksToBytes(blocks uint64, blockSize int64) int64 {
	if blockSize <= 0 || blocks > uint64(math.MaxInt64/blockSize) {
		return math.MaxInt64
	}

	return int64(blocks) * blockSize
}

// allocatedBytes returns the space that a file takes in the pool.
func allocatedBytes(info fs.FileInfo) int64 { return statOf(info).Blocks * statBlock }

// statOf returns what the kernel has returned of a file.
func statOf(info fs.FileInfo) *syscall.Stat_t {
	return info.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // always, on Linux
}

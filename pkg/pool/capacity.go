package pool

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Capacity is the space of a pool's filesystem, in bytes.
type Capacity struct {
	Total, Available int64
	// Allocated is the space that volumes and snapshots have allocated; 0 unless it
	// was measured (Admission).
	Allocated int64
}

const (
	// A pool is nearly full when less than a twentieth is left, or less than
	// 1 GiB of one that is larger than 20 GiB.
	nearlyFullPart  = 20
	nearlyFullBytes = 1 << 30
)

// NearlyFull says whether it is time to make room.
func (c Capacity) NearlyFull() bool {
	return c.Available < min(c.Total/nearlyFullPart, nearlyFullBytes)
}

// Capacity asks the pool's filesystem for its space, and the one that carries it
// where it lies in a file.
func (p *Pool) Capacity() (Capacity, error) {
	own, used, err := space(p.path)
	if err == nil && p.hostImage != "" {
		own, err = own.limitedByHost(p.hostImage, used)
	}

	if err != nil {
		return Capacity{}, fmt.Errorf("capacity of pool %q at %s: %w", p.name, p.path, err)
	}

	return own, nil
}

func space(path string) (whole Capacity, used int64, err error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return Capacity{}, 0, err //nolint:wrapcheck // the caller names the pool
	}

	whole = Capacity{Total: blocksToBytes(stat.Blocks, stat.Bsize), Available: blocksToBytes(stat.Bavail, stat.Bsize)}

	return whole, blocksToBytes(stat.Blocks-min(stat.Bfree, stat.Blocks), stat.Bsize), nil
}

// carried is what is true of a filesystem in a sparse file: the file has to find
// room for all that it will hold. What is in use inside and has no place in the
// file yet, as thick images, comes first; what the file has and nobody uses is
// not counted, since it is on its way back (discard).
func (c Capacity) limitedByHost(file string, used int64) (Capacity, error) {
	info, err := os.Stat(file)
	if err != nil {
		return Capacity{}, err //nolint:wrapcheck // the caller names the pool
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

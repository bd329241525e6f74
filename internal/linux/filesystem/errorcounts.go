package filesystem

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	linuxbtrfs "github.com/touchstone-csi/touchstone/internal/linux/btrfs"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/sysfs"
)

// ErrorCounts are the errors that the kernel has counted in a filesystem. They are stored in the
// filesystem, so they include those of former mounts.
type ErrorCounts struct {
	// Count grows with each error; 0 is none.
	Count uint64
	// Corrupted says that what was read made no sense, IO that the device failed.
	Corrupted, IO bool
}

const (
	sysExt4  = "/sys/fs/ext4"
	sysBtrfs = "/sys/fs/btrfs"
)

// The codes that ext4 keeps of errors, from fs/ext4/ext4.h: they are no errnos.
const (
	ext4CodeIO        = 2
	ext4CodeBadCRC    = 4
	ext4CodeCorrupted = 5
)

// ReadErrors reads what the kernel counts of the filesystem on the loop device of
// that number, which is mounted at root, open for reading. It starts no tool and
// reads nothing from the filesystem's own device, so it answers where that hangs.
// Of xfs there is nothing to read: the kernel counts nothing. What ext4 counts
// shows some milliseconds after the error. Error: the kernel's,
// fs.ErrNotExist where the filesystem is not mounted any more.
func ReadErrors(fsType string, device int, root *os.File) (ErrorCounts, error) {
	row, _ := typeByName(fsType)
	if row.errorCounts == nil {
		return ErrorCounts{}, nil
	}

	found, err := row.errorCounts(device, root)
	if err != nil {
		return ErrorCounts{}, fmt.Errorf("errors that the kernel has counted in the %s on loop device %d: %w", fsType, device, err)
	}

	return found, nil
}

// ext4ErrorCounts reads the counters that sysfs shows of the ext4 on a loop device.
func ext4ErrorCounts(device int, _ *os.File) (ErrorCounts, error) {
	directory := filepath.Join(sysExt4, loop.Name(device))

	count, err := readNumber(directory, "errors_count")
	if err != nil || count == 0 {
		return ErrorCounts{}, err
	}

	found := ErrorCounts{Count: count}

	for _, name := range []string{"first_error_errcode", "last_error_errcode"} {
		code, err := readNumber(directory, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // kernels before 5.8 keep no code
		}

		if err != nil {
			return ErrorCounts{}, err
		}

		found.IO = found.IO || code == ext4CodeIO
		found.Corrupted = found.Corrupted || code == ext4CodeBadCRC || code == ext4CodeCorrupted
	}

	return found, nil
}

func readNumber(directory, name string) (uint64, error) {
	text, err := sysfs.Read(filepath.Join(directory, name))
	if err != nil {
		return 0, err
	}

	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}

	return number, nil
}

// btrfsErrorCounts asks for the UUID first, since that of a twin is the kernel's own
// invention for the time of its mount.
func btrfsErrorCounts(_ int, root *os.File) (ErrorCounts, error) {
	id, err := linuxbtrfs.UUID(root)
	if err != nil {
		return ErrorCounts{}, err
	}

	devices := filepath.Join(sysBtrfs, id, "devinfo")

	entries, err := os.ReadDir(devices)
	if err != nil {
		return ErrorCounts{}, err
	}

	var found ErrorCounts

	for _, entry := range entries {
		text, err := sysfs.ReadFile(filepath.Join(devices, entry.Name(), "error_stats"))
		if err != nil {
			return ErrorCounts{}, err
		}

		if err := found.addBtrfs(string(text)); err != nil {
			return ErrorCounts{}, err
		}
	}

	return found, nil
}

// addBtrfs adds the lines of one device's error_stats: a name and a number each.
// "invalid" is all there is while the kernel has not read them yet.
func (e *ErrorCounts) addBtrfs(stats string) error {
	for line := range strings.Lines(stats) {
		name, value, hasValue := strings.Cut(strings.TrimSpace(line), " ")
		if !hasValue {
			continue
		}

		count, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return fmt.Errorf("error_stats: %w", err)
		}

		e.Count += count

		switch name {
		case "corruption_errs", "generation_errs":
			e.Corrupted = e.Corrupted || count > 0
		case "write_errs", "read_errs", "flush_errs":
			e.IO = e.IO || count > 0
		}
	}

	return nil
}

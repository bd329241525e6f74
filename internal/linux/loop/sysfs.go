package loop

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// sysfs has the attributes of loop devices, which the kernel answers without asking their images.
type sysfs struct{ root string }

// numbers returns those of the loop devices that the machine has, in order.
func (s sysfs) numbers() ([]int, error) {
	entries, err := os.ReadDir(filepath.Join(s.root, "block"))
	if err != nil {
		return nil, fmt.Errorf("list block devices: %w", err)
	}

	var numbers []int

	for _, entry := range entries {
		digits, isLoop := strings.CutPrefix(entry.Name(), "loop")
		if number, err := strconv.Atoi(digits); isLoop && err == nil {
			numbers = append(numbers, number)
		}
	}

	slices.Sort(numbers)

	return numbers, nil
}

// read returns the content of one of the device's attributes, "" where the kernel
// says that the device, or the attribute, does not exist. Any other failure says
// nothing about the device and is an error.
func (s sysfs) read(number int, attribute string) (string, error) {
	content, err := os.ReadFile(filepath.Join(s.root, "block", Name(number), attribute))

	switch {
	case isMissing(err):
		return "", nil
	case err != nil:
		return "", numberError("read in sysfs about", number, err)
	default:
		return strings.TrimSuffix(string(content), "\n"), nil
	}
}

// detachedSince says whether a device could not be opened because nothing is attached to
// the number any more. A missing node alone does not say that.
func (s sysfs) detachedSince(number int, err error) bool {
	return errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) || !s.attached(number)
}

// attached is true, too, where it is unknown.
func (s sysfs) attached(number int) bool {
	_, err := os.Lstat(filepath.Join(s.root, "block", Name(number), "loop"))

	return !errors.Is(err, fs.ErrNotExist)
}

// deletedSuffix is what the kernel adds to the path of a file that has no name any more.
const deletedSuffix = " (deleted)"

// backingPath is "" where nothing is attached. LOOP_GET_STATUS64 truncates it to 64 bytes and does
// not follow a rename.
func (s sysfs) backingPath(number int) (path string, deleted bool, err error) {
	path, err = s.read(number, "loop/backing_file")
	path, deleted = strings.CutSuffix(path, deletedSuffix)

	return path, deleted, err
}

// sequence is 0 on a kernel before 5.15, which has none, or where the device does not exist.
func (s sysfs) sequence(number int) (uint64, error) {
	content, err := s.read(number, "diskseq")
	if err != nil || content == "" {
		return 0, err
	}

	sequence, err := strconv.ParseUint(content, 10, 64)
	if err != nil {
		return 0, numberError("read in sysfs about", number, err)
	}

	return sequence, nil
}

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

	"github.com/touchstone-csi/touchstone/internal/linux/sysfs"
)

// attributes are those of loop devices in sysfs, which the kernel answers without asking their images.
type attributes struct{ root string }

// numbers returns those of the loop devices that the machine has, in order.
func (a attributes) numbers() ([]int, error) {
	entries, err := os.ReadDir(filepath.Join(a.root, "block"))
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
func (a attributes) read(number int, attribute string) (string, error) {
	content, err := sysfs.ReadFile(filepath.Join(a.root, "block", Name(number), attribute))

	if isMissing(err) {
		return "", nil
	}

	return strings.TrimSuffix(string(content), "\n"), numberError("read in sysfs about", number, err)
}

// detachedSince says whether a device could not be opened because nothing is attached to
// the number any more. A missing node alone does not say that.
func (a attributes) detachedSince(number int, err error) bool {
	return errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) || !a.attached(number)
}

// attached is true, too, where it is unknown.
func (a attributes) attached(number int) bool {
	_, err := os.Lstat(filepath.Join(a.root, "block", Name(number), "loop"))

	return !errors.Is(err, fs.ErrNotExist)
}

// deletedSuffix is what the kernel adds to the path of a file that has no name any more.
const deletedSuffix = " (deleted)"

// backingPath is "" where nothing is attached. LOOP_GET_STATUS64 truncates it to 64 bytes and does
// not follow a rename.
func (a attributes) backingPath(number int) (path string, deleted bool, err error) {
	path, err = a.read(number, "loop/backing_file")
	path, deleted = strings.CutSuffix(path, deletedSuffix)

	return path, deleted, err
}

// sequence is 0 on a kernel before 5.15, which has none, or where the device does not exist.
func (a attributes) sequence(number int) (uint64, error) {
	content, err := a.read(number, "diskseq")
	if err != nil || content == "" {
		return 0, err
	}

	sequence, err := strconv.ParseUint(content, 10, 64)
	if err != nil {
		return 0, numberError("read in sysfs about", number, err)
	}

	return sequence, nil
}

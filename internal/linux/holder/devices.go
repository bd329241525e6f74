package holder

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/sysfs"
)

const (
	sysBlock = "/sys/block"
	// deletedSuffix is what the kernel adds to the path of a file that has no name any more.
	deletedSuffix = " (deleted)"
)

// devicesOn returns the block devices that are made of a block device or of a file in its
// filesystem: loop devices, such as a kubelet attaches for a raw block volume, and those that the
// kernel lists as holders, such as device-mapper's. The kernel itself has it open, and no process.
func devicesOn(major, minor uint32) []Process {
	var found []Process

	holders, _ := os.ReadDir(fmt.Sprintf("/sys/dev/block/%d:%d/holders", major, minor))
	for _, each := range holders {
		found = append(found, Process{Device: "/dev/" + each.Name()})
	}

	loops, _ := filepath.Glob(sysBlock + "/loop*/loop/backing_file")
	for _, attribute := range loops {
		device := "/dev/" + strings.Split(attribute, "/")[len(strings.Split(sysBlock, "/"))]

		if backing, err := sysfs.ReadFile(attribute); err == nil && isBacking(device, strings.TrimSuffix(string(backing), "\n"), major, minor) {
			found = append(found, Process{Device: device})
		}
	}

	return found
}

// isBacking reports whether the backing file of a loop device is a node of the block device, or in
// its filesystem. The path is that in the mount namespace of the program that has attached it, or "/"
// after the end of that: where it leads to no node or file with content here, the loop device is
// asked, as the last resort. Both may hang with an unrelated file's filesystem.
func isBacking(loop, path string, major, minor uint32) bool {
	var file unix.Statx_t

	err := unix.Statx(unix.AT_FDCWD, strings.TrimSuffix(path, deletedSuffix), unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE|unix.STATX_SIZE, &file)
	kind := file.Mode & unix.S_IFMT

	if err == nil && (kind == unix.S_IFBLK || kind == unix.S_IFREG && file.Size > 0) {
		return isDevice(&file, major, minor) || isIn(&file, major, minor)
	}

	device, err := os.OpenFile(loop, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer device.Close()

	info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
	held := unix.Mkdev(major, minor)

	return err == nil && (info.Rdevice == held || info.Device == held)
}

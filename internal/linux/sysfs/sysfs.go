// Package sysfs reads and writes attributes: the files by which sysfs and cgroupfs show and take
// one value of the kernel. It does not know what an attribute means.
package sysfs

import (
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
)

// BootID is the path of the id that each boot of the machine has.
const BootID = "/proc/sys/kernel/random/boot_id"

// Read returns an attribute's value without surrounding white space. The error is the kernel's,
// fs.ErrNotExist where there is no such attribute.
func Read(path string) (string, error) {
	text, err := ReadFile(path)
	if err != nil {
		return "", err
	}

	return strings.TrimSpace(string(text)), nil
}

// usual is more than most attributes have.
const usual = 256

// ReadFile returns an attribute's content by half of the system calls of os.ReadFile: an attribute needs no poller
// of the runtime, and has no size. Probes read several attributes of each device.
func ReadFile(path string) ([]byte, error) {
	descriptor, err := eintr.RetryValue(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(descriptor)

	content := make([]byte, 0, usual)

	for {
		read, err := eintr.RetryValue(func() (int, error) { return unix.Read(descriptor, content[len(content):cap(content)]) })

		switch {
		case err != nil:
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		case read == 0:
			return content, nil
		}

		content = slices.Grow(content[:len(content)+read], 1) // only a full one grows
	}
}

// Write sets an attribute with a single write(2), which the kernel parses as one value. It never
// creates the file, so that a missing attribute is fs.ErrNotExist and not fs.ErrPermission.
func Write(path, value string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	defer file.Close()

	_, err = file.WriteString(value)

	return err
}

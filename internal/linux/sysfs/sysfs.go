// Package sysfs reads and writes attributes: the files by which sysfs and cgroupfs show and take
// one value of the kernel. It does not know what an attribute means.
package sysfs

import (
	"os"
	"strings"
)

// BootID is the path of the id that each boot of the machine has.
const BootID = "/proc/sys/kernel/random/boot_id"

// Read returns an attribute's value without surrounding white space. The error is the kernel's,
// fs.ErrNotExist where there is no such attribute.
func Read(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}

	return strings.TrimSpace(string(text)), nil
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

// Package loopsys makes a sysfs of plain files, in which loop devices are as a test says. It needs no root.
package loopsys

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
)

// Device is a loop device.
type Device struct {
	Image               string
	ReadOnly, AutoClear bool
	Sequence            uint64
	// Broken means that its sequence cannot be read.
	Broken bool
}

// Sys is the directory of the sysfs.
type Sys string

// New returns a sysfs with these devices, by their numbers.
func New(tb testing.TB, devices map[int]Device) Sys {
	tb.Helper()

	s := Sys(tb.TempDir())
	require.NoError(tb, os.MkdirAll(filepath.Join(string(s), "block"), 0o700))

	for number, each := range devices {
		s.Attach(tb, number, each)
	}

	return s
}

// First is the number of the first device slot.
const First = 5

// Dev is the directory in which no device can be opened.
const Dev = "/dev/null/none"

// Loops are the devices. None can be opened.
func (s Sys) Loops() *loop.Loops {
	return loop.NewLoops(loop.LoopsOptions{First: First, Sys: string(s), Dev: Dev})
}

// Attach replaces the device with the number.
func (s Sys) Attach(tb testing.TB, number int, of Device) {
	tb.Helper()

	flag := map[bool]string{false: "0\n", true: "1\n"}
	block := filepath.Join(string(s), "block", fmt.Sprintf("loop%d", number))
	require.NoError(tb, os.RemoveAll(block))
	require.NoError(tb, os.MkdirAll(filepath.Join(block, "loop"), 0o700))

	for name, content := range map[string]string{
		"loop/backing_file": of.Image + "\n", "loop/autoclear": flag[of.AutoClear], "ro": flag[of.ReadOnly], "diskseq": fmt.Sprintf("%d\n", of.Sequence),
	} {
		require.NoError(tb, os.WriteFile(filepath.Join(block, name), []byte(content), 0o600))
	}

	if of.Broken {
		require.NoError(tb, os.Remove(filepath.Join(block, "diskseq")))
		require.NoError(tb, os.Mkdir(filepath.Join(block, "diskseq"), 0o700))
	}
}

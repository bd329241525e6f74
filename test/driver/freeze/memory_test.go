package freeze_test

import (
	"errors"
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/test/await"
)

// pendingMemory is a page that the kernel waits for, as userfaultfd(2) has it:
// a write of it has begun and can't end.
type pendingMemory struct {
	page  []byte
	fault int
}

// uffdRange and those after it are the structures of linux/userfaultfd.h.
type uffdRange struct{ start, length uint64 }

func newPendingMemory(t *testing.T) *pendingMemory {
	t.Helper()

	const (
		api      = 0xaa
		missing  = 1
		setAPI   = 0xc018aa3f
		register = 0xc020aa00
	)

	fault, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		t.Skipf("userfaultfd: %v", errno)
	}

	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)

	// With the descriptor, the waiting ends.
	t.Cleanup(func() { require.NoError(t, errors.Join(unix.Close(int(fault)), unix.Munmap(page))) })

	memory := &pendingMemory{page: page, fault: int(fault)}
	memory.ioctl(t, setAPI, unsafe.Pointer(&struct{ api, features, ioctls uint64 }{api: api}))
	memory.ioctl(t, register, unsafe.Pointer(&struct {
		uffdRange

		mode, ioctls uint64
	}{uffdRange: memory.all(), mode: missing}))

	return memory
}

func (m *pendingMemory) all() uffdRange {
	return uffdRange{start: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.page)))), length: uint64(len(m.page))}
}

// awaitFault returns once a process waits for the page.
func (m *pendingMemory) awaitFault(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(m.fault), Events: unix.POLLIN}}, 0)

		return err == nil && ready == 1
	}, await.Limit, time.Millisecond, "want: the write waits for its page")
}

// fill gives the page to the process that waits for it.
func (m *pendingMemory) fill(t *testing.T) {
	t.Helper()

	const zeroPage = 0xc020aa04

	m.ioctl(t, zeroPage, unsafe.Pointer(&struct {
		uffdRange

		mode   uint64
		filled int64
	}{uffdRange: m.all()}))
}

func (m *pendingMemory) ioctl(t *testing.T, request uintptr, argument unsafe.Pointer) {
	t.Helper()

	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(m.fault), request, uintptr(argument))
	require.Zero(t, errno, "want: the ioctl succeeds")
}

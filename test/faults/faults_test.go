package faults_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

const (
	mib = 1 << 20
	// soon is how long is awaited what comes at once or never.
	soon = 30 * time.Second
)

func TestServedFilesMatchTheBacking(t *testing.T) {
	namespace.NeedRoot(t)

	d := faults.Serve(t)
	path := filepath.Join(d.Path, "directory", "image")
	require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte("content"), 0o600))

	behind := filepath.Join(d.Backing, "directory", "image")
	content, err := os.ReadFile(behind)
	require.NoError(t, err)
	require.Equal(t, "content", string(content))

	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode(), "want: the file has its mode")

	require.NoError(t, os.Truncate(path, 4*mib))

	info, err = os.Stat(behind)
	require.NoError(t, err)
	require.EqualValues(t, 4*mib, info.Size(), "want: the file behind it has its size")

	require.NoError(t, os.Rename(path, path+".moved"))
	require.NoFileExists(t, behind)
	require.FileExists(t, behind+".moved")

	file, err := os.OpenFile(path+".moved", os.O_RDWR, 0)
	require.NoError(t, err)

	defer file.Close()

	require.NoError(t, os.Remove(file.Name()))
	require.NoFileExists(t, behind+".moved")

	var stat unix.Stat_t

	require.NoError(t, unix.Fstat(int(file.Fd()), &stat))
	require.Zero(t, stat.Nlink, "want: the removed file has no link")
	require.EqualValues(t, 4*mib, stat.Size, "want: the removed file keeps its size")

	hole, err := unix.Seek(int(file.Fd()), 0, unix.SEEK_HOLE)
	require.NoError(t, err)
	require.EqualValues(t, 4096, hole, "want: the hole begins behind the data")

	require.NoError(t, unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096))

	directory, err := os.Open(d.Path)
	require.NoError(t, err)

	defer directory.Close()

	require.NoError(t, directory.Sync())
}

// TestEachFaultTakesEffect and ends.
func TestEachFaultTakesEffect(t *testing.T) {
	namespace.NeedRoot(t)

	block := bytes.Repeat([]byte("block..."), 512)
	read := func(offset int64) func(*os.File) error {
		return func(file *os.File) error {
			_, err := file.ReadAt(make([]byte, len(block)), offset)

			return err
		}
	}
	write := func(offset int64) func(*os.File) error {
		return func(file *os.File) error {
			_, err := file.WriteAt(block, offset)

			return err
		}
	}
	sync := (*os.File).Sync
	create := func(file *os.File) error { return os.WriteFile(file.Name()+".other", nil, 0o600) }
	resize := func(file *os.File) error { return file.Truncate(mib) }
	statfs := func(file *os.File) error { return unix.Statfs(filepath.Dir(file.Name()), &unix.Statfs_t{}) }

	for name, row := range map[string]struct {
		fault           faults.Fault
		fails, succeeds func(*os.File) error
	}{
		"reads of a range":  {faults.Fault{Name: "file", Ops: faults.Reads, Offset: 8192, Length: 1, Errno: unix.EIO}, read(8192), read(4096)},
		"reads from there":  {faults.Fault{Name: "file", Ops: faults.Reads, Offset: 8193, Errno: unix.EIO}, read(16384), read(4096)},
		"reads, not writes": {faults.Fault{Ops: faults.Reads, Errno: unix.EIO}, read(0), write(0)},
		"writes":            {faults.Fault{Name: "file", Ops: faults.Writes, Errno: unix.ENOSPC}, write(0), read(0)},
		"sizes":             {faults.Fault{Name: "file", Ops: faults.Writes, Errno: unix.EFBIG}, resize, sync},
		"syncs":             {faults.Fault{Name: "file", Ops: faults.Syncs, Errno: unix.EIO}, sync, write(0)},
		"creation":          {faults.Fault{Name: "file.other", Ops: faults.Names, Errno: unix.EROFS}, create, write(0)},
		"everything":        {faults.Fault{Errno: unix.EHOSTDOWN}, statfs, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := faults.Serve(t)

			file, err := os.OpenFile(filepath.Join(d.Path, "file"), os.O_RDWR|os.O_CREATE, 0o600)
			require.NoError(t, err)

			defer file.Close()

			require.NoError(t, file.Truncate(mib))
			direct(t, file)

			d.Inject(t, row.fault)
			require.Zero(t, d.Met(t), "want: the fault is not met before the operation")
			require.ErrorIs(t, row.fails(file), row.fault.Errno)
			require.Positive(t, d.Met(t), "want: the fault is met")

			if row.succeeds != nil {
				require.NoError(t, row.succeeds(file))
			}

			d.Release(t)
			require.NoError(t, row.fails(file))
		})
	}
}

// direct keeps the page cache from answering. The buffers of the tests happen to
// be good enough: FUSE asks for no alignment.
func direct(t *testing.T, file *os.File) {
	t.Helper()

	flags, err := unix.FcntlInt(file.Fd(), unix.F_GETFL, 0)
	require.NoError(t, err)
	_, err = unix.FcntlInt(file.Fd(), unix.F_SETFL, flags|unix.O_DIRECT)
	require.NoError(t, err)
}

func TestDelayPasses(t *testing.T) {
	namespace.NeedRoot(t)

	const delay = 300 * time.Millisecond

	d := faults.Serve(t)
	path := filepath.Join(d.Path, "file")
	require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))

	d.Inject(t, faults.Fault{Name: "file", Ops: faults.Reads, Delay: delay})

	began := time.Now()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "x", string(content))
	require.GreaterOrEqual(t, time.Since(began), delay, "want: the read is delayed")
}

func TestReleasedHangContinues(t *testing.T) {
	namespace.NeedRoot(t)

	d := faults.Serve(t)
	path := filepath.Join(d.Path, "file")
	require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
	require.NoError(t, os.WriteFile(path+".other", []byte("y"), 0o600))

	d.Inject(t, faults.Fault{Name: "file", Hang: true})

	done := make(chan error, 1)

	go func() { done <- os.WriteFile(path, []byte("z"), 0o600) }()

	require.Eventually(t, func() bool { return d.Met(t) > 0 }, soon, time.Millisecond, "want: the write hangs")

	// Other requests do not wait.
	_, err := os.ReadFile(path + ".other")
	require.NoError(t, err)
	require.Empty(t, done, "want: the write hangs until it is released")

	d.Release(t)
	require.NoError(t, await.Receive(t, done, "the write to return once the fault is released"))
}

func TestKilledServerFailsHangingCalls(t *testing.T) {
	namespace.NeedRoot(t)

	d := faults.Serve(t)
	path := filepath.Join(d.Path, "file")
	require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))

	d.Inject(t, faults.Fault{Name: "file", Hang: true})

	done := make(chan error, 1)

	go func() { done <- os.WriteFile(path, []byte("z"), 0o600) }()

	require.Eventually(t, func() bool { return d.Met(t) > 0 }, soon, time.Millisecond, "want: the write hangs")
	d.Kill(t)
	require.Error(t, await.Receive(t, done, "the write to return"), "a write to a directory whose server was killed")

	_, err := os.Stat(path)
	require.ErrorIs(t, err, unix.ENOTCONN)
}

// attachServed returns the device of an ext4 that is served as "image".
func attachServed(t *testing.T, d *faults.Directory, options loop.AttachOptions) *loop.Device {
	t.Helper()

	image, err := os.Create(filepath.Join(d.Path, "image"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, image.Close()) })
	require.NoError(t, image.Truncate(64*mib))

	output, err := child.Command(t, "mkfs.ext4", "-q", "-b", "4096", image.Name()).CombinedOutput()
	require.NoError(t, err, "%s", output)

	loops := loop.NewLoops(loop.LoopsOptions{})
	device, err := loops.Attach(t.Context(), image, options)
	require.NoError(t, err)
	require.Equal(t, !options.Buffered, device.DirectIO, "want: the device has direct I/O unless buffered")
	t.Cleanup(func() {
		require.NoError(t, device.Close())
		require.NoError(t, loops.Detach(context.WithoutCancel(t.Context()), device.Number))
	})

	return device
}

// TestLoopDeviceOfAServedImageFails in a part of the image.
func TestLoopDeviceOfAServedImageFails(t *testing.T) {
	namespace.NeedRoot(t)

	for name, buffered := range map[string]bool{"direct": false, "buffered": true} {
		t.Run(name, func(t *testing.T) {
			d := faults.Serve(t)

			device := attachServed(t, d, loop.AttachOptions{Buffered: buffered, PreferredNumber: -1})
			mounted := t.TempDir()
			require.NoError(t, unix.Mount(device.Path, mounted, "ext4", 0, ""))
			t.Cleanup(func() { require.NoError(t, unix.Unmount(mounted, 0)) })

			file, err := os.Create(filepath.Join(mounted, "file"))
			require.NoError(t, err)

			defer file.Close()

			_, err = file.Write(bytes.Repeat([]byte("data"), mib))
			require.NoError(t, err)
			require.NoError(t, file.Sync())

			d.Inject(t, faults.Fault{Name: "image", Ops: faults.Writes | faults.Syncs, Errno: unix.EIO})

			_, err = file.WriteAt([]byte("other"), 0)
			require.NoError(t, err)
			require.ErrorIs(t, file.Sync(), unix.EIO)

			d.Release(t)

			_, err = file.WriteAt([]byte("other"), 0)
			require.NoError(t, err)
			require.NoError(t, file.Sync())
		})
	}
}

// orphan passes a directory for files to the process that becomes a parent in TestParent.
const orphan = "TOUCHSTONE_TEST_FAULTS_ORPHAN"

// TestParent is the process of TestServerEndsWithItsParent that dies.
func TestParent(t *testing.T) {
	report := os.Getenv(orphan)
	if report == "" {
		t.Skip("a part of TestServerEndsWithItsParent")
	}

	d := faults.ServeFor(t, 5*time.Second)
	path := filepath.Join(d.Path, "file")
	require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
	d.Inject(t, faults.Fault{Name: "file", Hang: true})

	// One of its own threads hangs in what its child serves.
	go func() { _ = os.WriteFile(path, []byte("z"), 0o600) }()

	require.Eventually(t, func() bool { return d.Met(t) > 0 }, soon, time.Millisecond, "want: the write hangs")
	require.NoError(t, os.WriteFile(report+".part", []byte(d.Path), 0o600))
	require.NoError(t, os.Rename(report+".part", report))
	select {}
}

// TestServerEndsWithItsParent: a process is killed while one of its threads hangs in what its child
// serves, and another that only stops to answer: in both cases the child ends all by itself.
func TestServerEndsWithItsParent(t *testing.T) {
	namespace.NeedRoot(t)

	for name, strike := range map[string]func(*testing.T, int){
		"dies": kill, "falls silent": stop,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			report := filepath.Join(t.TempDir(), "served")
			parent := exec.Command("/proc/self/exe", "-test.run=^TestParent$")
			parent.Env = append(os.Environ(), orphan+"="+report)
			require.NoError(t, child.Start(parent))

			ended := make(chan error, 1)

			require.Eventually(t, func() bool {
				_, err := os.Stat(report)

				return err == nil
			}, soon, 10*time.Millisecond, "want: the parent reports its directory")

			path, err := os.ReadFile(report)
			require.NoError(t, err)
			require.True(t, mounted(t, string(path)), "want: it is mounted")

			strike(t, parent.Process.Pid)
			require.Eventually(t, func() bool { return !mounted(t, string(path)) }, soon, 10*time.Millisecond, "want: the directory is unmounted after the parent's death")

			// It may have been, and is not waited for yet.
			require.NoError(t, parent.Process.Kill())

			// A thread that hangs keeps a process from ending.
			go func() { ended <- parent.Wait() }()

			select {
			case err := <-ended:
				_, killed := errors.AsType[*exec.ExitError](err)
				require.True(t, killed, "%v", err)
			case <-time.After(soon):
				require.FailNow(t, "a thread still hangs")
			}

			// <its TempDir>/001/served
			require.NoError(t, os.RemoveAll(filepath.Dir(filepath.Dir(string(path)))))
		})
	}
}

// TestParentWithAMount is the process of TestKilledParentLeavesNoDevice.
func TestParentWithAMount(t *testing.T) {
	report := os.Getenv(orphan)
	if report == "" {
		t.Skip("a part of TestKilledParentLeavesNoDevice")
	}

	d := faults.Serve(t)
	at := t.TempDir()

	device := attachServed(t, d, loop.AttachOptions{AutoClear: true, PreferredNumber: -1})
	require.NoError(t, unix.Mount(device.Path, at, "ext4", 0, ""))
	require.NoError(t, os.WriteFile(filepath.Join(at, "file"), []byte("not yet on the device"), 0o600))

	var served unix.Stat_t

	require.NoError(t, unix.Stat(d.Path, &served))
	require.NoError(t, os.WriteFile(report+".part", fmt.Appendf(nil, "%d %d", device.Number, unix.Minor(served.Dev)), 0o600))
	require.NoError(t, os.Rename(report+".part", report))
	select {}
}

// TestKilledParentLeavesNoDevice: it has mounted a served image in a namespace of its own, of which
// the child that serves is the last process then.
func TestKilledParentLeavesNoDevice(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	directory := t.TempDir()
	report := filepath.Join(directory, "report")
	parent := exec.Command("/proc/self/exe", "-test.run=^TestParentWithAMount$")
	parent.Env = append(os.Environ(), orphan+"="+report, "TMPDIR="+directory)
	parent.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	require.NoError(t, child.Start(parent))

	require.Eventually(t, func() bool {
		_, err := os.Stat(report)

		return err == nil
	}, soon, 10*time.Millisecond, "want: the parent reports its device")

	text, err := os.ReadFile(report)
	require.NoError(t, err)

	var number, connection int

	_, err = fmt.Sscan(string(text), &number, &connection)
	require.NoError(t, err)

	image := fmt.Sprintf("/sys/block/loop%d/loop/backing_file", number)
	require.FileExists(t, image)

	// Should it be left, everybody who asks all loop devices would hang.
	defer abort(t, connection)

	kill(t, parent.Process.Pid)
	require.Error(t, child.Wait(t, parent), "the end of a parent that was killed")
	require.Eventually(t, func() bool {
		name, err := os.ReadFile(image)

		return err != nil || strings.TrimSpace(string(name)) != "/image"
	}, soon, 10*time.Millisecond, "the device is left, and accesses to it hang")
}

// abort ends a connection to a filesystem in a process, if there still is one.
func abort(t *testing.T, connection int) {
	t.Helper()

	control := t.TempDir()
	require.NoError(t, unix.Mount("fusectl", control, "fusectl", 0, ""))

	defer func() { require.NoError(t, unix.Unmount(control, 0)) }()

	_ = os.WriteFile(filepath.Join(control, strconv.Itoa(connection), "abort"), []byte("1"), 0o600)
}

func kill(t *testing.T, pid int) {
	t.Helper()
	require.NoError(t, unix.Kill(pid, unix.SIGKILL))
}

// stop signals every thread: the kernel gives a signal for the process to one of
// them, and the one that hangs would keep it until it does not any more.
func stop(t *testing.T, pid int) {
	t.Helper()

	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	require.NoError(t, err)

	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		require.NoError(t, err)

		err = unix.Tgkill(pid, id, unix.SIGSTOP)
		if !errors.Is(err, unix.ESRCH) {
			require.NoError(t, err)
		}
	}
}

func mounted(t *testing.T, path string) bool {
	t.Helper()

	found, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(path))
	require.NoError(t, err)

	return len(found) > 0
}

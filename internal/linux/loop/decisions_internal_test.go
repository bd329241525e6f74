package loop

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/test/errtext"
)

// inSysfs returns a Loops of a sysfs with these attributes below block, and without loop-control.
func inSysfs(t *testing.T, attributes map[string]string) *Loops {
	t.Helper()

	sys := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(sys, "block"), 0o700))

	for name, value := range attributes {
		path := filepath.Join(sys, "block", name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(value+"\n"), 0o600))
	}

	return NewLoops(LoopsOptions{First: 100, Last: 102, Sys: sys, Dev: t.TempDir(), DeviceDir: "/proc/nodes"})
}

// TestErrorOfOneNumberIsSkipped: another number is tried only after an error that it may not have.
func TestErrorOfOneNumberIsSkipped(t *testing.T) {
	t.Parallel()

	for err, want := range map[error]bool{
		unix.EACCES: true, unix.EPERM: true, unix.EROFS: true, unix.EBUSY: true, unix.ENOENT: true, unix.ENXIO: true, unix.ENODEV: true,
		unix.EIO: false, unix.EINVAL: false, unix.ENOMEM: false, everyNumberError{unix.EACCES}: false,
	} {
		require.Equal(t, want, isOfNumber(fmt.Errorf("open: %w", err)), "%v is of one number", err)
	}
}

// TestDetachedSince: a device that cannot be opened is attached, unless the kernel says otherwise.
func TestDetachedSince(t *testing.T) {
	t.Parallel()

	loops := inSysfs(t, map[string]string{"loop1/loop/backing_file": "/image", "loop2/size": "0"})

	for _, test := range []struct {
		number int
		err    error
		want   bool
	}{
		{1, unix.ENXIO, true},
		{1, unix.ENODEV, true},
		{1, unix.EIO, false},
		{1, fs.ErrNotExist, false},
		{2, unix.EIO, true},
		{3, unix.EMFILE, true},
	} {
		require.Equal(t, test.want, loops.sysfs.detachedSince(test.number, test.err), "loop%d after %v", test.number, test.err)
	}

	_, attached, err := loops.Status(1)
	require.Error(t, err, "want: a device that cannot be opened is no free number")
	require.False(t, attached, "want: no state after an error")

	_, attached, err = loops.Status(2)
	require.NoError(t, err, "want: a number without an image is not opened")
	require.False(t, attached, "want: nothing is attached")

	_, err = loops.Open(2)
	require.ErrorIs(t, err, ErrNotAttached)

	_, err = loops.Open(1)
	require.NotErrorIs(t, err, ErrNotAttached)
	require.Error(t, err, "want: the error of opening the node")

	_, err = loops.Resize(2)
	require.ErrorIs(t, err, ErrNotAttached)
}

// TestAttachmentsOfSysfs are in the order of their numbers.
func TestAttachmentsOfSysfs(t *testing.T) {
	t.Parallel()

	loops := inSysfs(t, map[string]string{
		"loop10/loop/backing_file": "/images/a (deleted)", "loop10/ro": "1", "loop10/loop/autoclear": "0", "loop10/diskseq": "7",
		"loop2/loop/backing_file": "/images/b", "loop2/ro": "0", "loop2/loop/autoclear": "1",
		"loop3/size": "0", "loopback/loop/backing_file": "/images/c", "sda/size": "8",
	})

	found, err := loops.Attachments()
	require.NoError(t, err)
	require.Equal(t, []Attachment{
		{Number: 2, Path: "/proc/nodes/loop2", BackingPath: "/images/b", AutoClear: true},
		{Number: 10, Path: "/proc/nodes/loop10", BackingPath: "/images/a", BackingDeleted: true, ReadOnly: true, Sequence: 7},
	}, found)

	for _, attribute := range []string{"loop/backing_file", "ro", "loop/autoclear", "diskseq"} {
		broken := inSysfs(t, map[string]string{"loop4/loop/backing_file": "/images/a"})
		path := filepath.Join(broken.sysfs.root, "block", "loop4", attribute)
		_ = os.Remove(path)
		require.NoError(t, os.Mkdir(path, 0o700))

		_, _, err = broken.Attachment(4)
		require.ErrorIs(t, err, unix.EISDIR, "want: %s that cannot be read is an error", attribute)

		_, err = broken.Attachments()
		require.ErrorIs(t, err, unix.EISDIR, "want: the list reports that %s cannot be read", attribute)
	}

	_, _, err = inSysfs(t, map[string]string{"loop4/loop/backing_file": "/a", "loop4/diskseq": "seven"}).Attachment(4)
	errtext.Require(t, err, "seven")

	_, err = NewLoops(LoopsOptions{Sys: t.TempDir()}).Attachments()
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// TestDiscardsAreRefusedOnce, and only a limit is reset that the device need not have.
func TestDiscardsAreRefusedOnce(t *testing.T) {
	t.Parallel()

	limit, most := "loop1/"+discardLimit, "loop1/queue/discard_max_hw_bytes"

	refused := inSysfs(t, map[string]string{limit: "4096"})
	require.NoError(t, refused.sysfs.refuseDiscards(1))

	now, err := refused.sysfs.read(1, discardLimit)
	require.NoError(t, err)
	require.Equal(t, noDiscards, now, "want: the device refuses discards")

	require.NoError(t, os.WriteFile(filepath.Join(refused.sysfs.root, "block", limit), []byte(noDiscards+"\n"), 0o600))
	require.NoError(t, refused.sysfs.refuseDiscards(1))

	text, err := os.ReadFile(filepath.Join(refused.sysfs.root, "block", limit))
	require.NoError(t, err)
	require.Equal(t, noDiscards+"\n", string(text), "want: a limit that is 0 already is not written again")
	require.ErrorIs(t, inSysfs(t, nil).sysfs.refuseDiscards(1), fs.ErrNotExist)

	for name, test := range map[string]struct {
		attributes map[string]string
		removes    bool
	}{
		"no such device":             {nil, false},
		"it discards":                {map[string]string{limit: "4096", most: "4096"}, false},
		"it cannot discard":          {map[string]string{limit: "0", most: "0"}, false},
		"it does not say whether":    {map[string]string{limit: "0"}, true},
		"it refuses what it could":   {map[string]string{limit: "0", most: "4096"}, true},
		"it does not have the limit": {map[string]string{most: "4096"}, false},
	} {
		// To remove the device takes loop-control, which is missing.
		err := inSysfs(t, test.attributes).allowDiscards(1)
		require.Equal(t, test.removes, err != nil, "%s: %v", name, err)
	}
}

// TestNumbers claims the lowest number that is not known, or the preferred one.
func TestNumbers(t *testing.T) {
	t.Parallel()

	n := newNumbers(5, 7)

	claim := func(preferred, want int) {
		t.Helper()

		number, ok := n.claim(preferred)
		require.True(t, ok, "want: a number is free")
		require.Equal(t, want, number)
	}

	claim(-1, 5)
	claim(6, 6)
	claim(6, 7)

	_, ok := n.claim(-1)
	require.False(t, ok, "want: all numbers are claimed")

	claim(0, 0)
	claim(MaxNumber, MaxNumber)

	_, ok = n.claim(MaxNumber + 1)
	require.False(t, ok, "want: a number beyond the kernel's is not claimed")

	n.free(0)
	n.free(MaxNumber)

	_, ok = n.claim(-1)
	require.False(t, ok, "want: a free number outside of the own ones is not claimed")

	n.free(5)
	claim(-1, 5)

	n.mark(6, true)
	n.mark(7, true)
	n.releaseDetached(func(number int) bool {
		require.NotEqual(t, 5, number, "want: an own number is not observed")

		return number == 6
	})
	claim(-1, 7)

	_, ok = n.claim(-1)
	require.False(t, ok, "want: a busy number that is attached still stays")

	n.mark(6, false)
	n.releaseDetached(func(int) bool { return false })

	_, ok = n.claim(-1)
	require.False(t, ok, "want: own numbers stay")
	require.Equal(t, 103, NewLoops(LoopsOptions{First: 100}).NumberOfSlot(3), "want: slots count from the first own number")
	require.Equal(t, MaxNumber, NewLoops(LoopsOptions{Last: MaxNumber + 5}).numbers.last, "want: the kernel's last number bounds the own ones")
}

// TestNodes opens and removes no other node than that of the device.
func TestNodes(t *testing.T) {
	t.Parallel()

	null := unix.Mkdev(1, 3)

	file, err := openDevice(os.DevNull, null, unix.S_IFCHR, os.O_RDONLY)
	require.NoError(t, err)
	require.NoError(t, file.Close())

	for _, wrong := range []struct {
		device uint64
		kind   uint32
	}{{unix.Mkdev(1, 5), unix.S_IFCHR}, {null, unix.S_IFBLK}} {
		_, err = openDevice(os.DevNull, wrong.device, wrong.kind, os.O_RDONLY)
		require.ErrorIs(t, err, errWrongNode)
	}

	loops := inSysfs(t, nil)
	loops.nodes.own = t.TempDir()
	node := filepath.Join(loops.nodes.own, "loop1")
	require.NoError(t, loops.nodes.removeNode(1), "want: a missing node is no error")
	require.NoError(t, os.WriteFile(node, nil, 0o600))
	require.NoError(t, loops.nodes.removeNode(1))
	require.FileExists(t, node, "want: a file that is no node stays")
	require.NoError(t, os.Remove(node))

	if os.Getuid() != 0 {
		return
	}

	require.NoError(t, unix.Mknod(node, unix.S_IFBLK|nodeMode, int(unix.Mkdev(Major, 2))))
	require.NoError(t, loops.nodes.removeNode(1))
	require.FileExists(t, node, "want: the node of another device stays")
	require.NoError(t, os.Remove(node))
	require.NoError(t, unix.Mknod(node, unix.S_IFBLK|nodeMode, int(unix.Mkdev(Major, 1))))
	require.NoError(t, loops.nodes.removeNode(1))
	require.NoFileExists(t, node, "want: the node of the device is removed")

	loops.nodes.own = filepath.Join(node, "below")
	require.NoError(t, os.WriteFile(node, nil, 0o600))
	require.ErrorIs(t, loops.nodes.removeNode(1), unix.ENOTDIR)
}

func TestOnlyAnAttachmentAsAskedForIsTakenOver(t *testing.T) {
	t.Parallel()

	o := AttachOptions{BlockSize: 4096}
	require.True(t, compatible(&Status{BlockSize: 4096, DirectIO: true}, o), "want: direct I/O makes no difference")

	for name, other := range map[string]Status{
		"read-only": {BlockSize: 4096, ReadOnly: true}, "block size": {BlockSize: 512}, "offset": {BlockSize: 4096, offset: 1},
		"limit": {BlockSize: 4096, limit: 1},
	} {
		require.False(t, compatible(&other, o), "want: another %s is another attachment", name)
	}
}

func TestReadOnlyAttachmentsAllowOneForWriting(t *testing.T) {
	t.Parallel()

	reader, writer := Status{ReadOnly: true}, Status{}

	for _, test := range []struct {
		found    []Status
		readOnly bool
		want     bool
	}{
		{nil, true, true},
		{[]Status{reader}, true, true},
		{[]Status{writer}, true, true},
		{nil, false, false},
		{[]Status{writer}, false, false},
		{[]Status{reader, writer}, false, false},
		{[]Status{reader}, false, true},
	} {
		source, err := os.Create(filepath.Join(t.TempDir(), "image"))
		require.NoError(t, err)

		img, err := openImage(source, test.readOnly)
		require.NoError(t, err)

		beside, err := attachableBeside(test.found, img, AttachOptions{ReadOnly: test.readOnly})
		require.NoError(t, err)
		require.Equal(t, test.want, beside, "read-only=%t beside %v", test.readOnly, test.found)
		require.NoError(t, errors.Join(img.file.Close(), source.Close()))

		_, err = img.lock(false)
		require.Error(t, err, "want: a lock that fails is an error")

		_, err = openImage(source, false)
		require.ErrorIs(t, err, unix.EBADF)

		_, err = IdentityOf(source)
		require.ErrorIs(t, err, unix.EBADF)
	}

	directory, err := os.Open(t.TempDir())
	require.NoError(t, err)

	defer directory.Close()

	_, err = openImage(directory, true)
	require.ErrorIs(t, err, ErrNotImage)
}

func TestTheBackoffDoublesAndEndsWithItsContext(t *testing.T) {
	t.Parallel()

	cause := errors.New("the caller has left")
	ctx, cancel := context.WithCancelCause(t.Context())

	require.NoError(t, newBackoff().wait(ctx))
	cancel(cause)

	require.ErrorIs(t, (&backoff{pause: time.Hour, longest: time.Hour}).wait(ctx), cause)

	b := &backoff{pause: time.Microsecond, longest: 3 * time.Microsecond}
	for _, want := range []time.Duration{2 * time.Microsecond, 3 * time.Microsecond, 3 * time.Microsecond} {
		require.NoError(t, b.wait(t.Context()))
		require.Equal(t, want, b.pause, "want: the pause doubles up to the longest one")
	}
}

package filesystem_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
)

func TestEachStateHasAName(t *testing.T) {
	t.Parallel()

	for state, want := range map[filesystem.State]string{
		filesystem.Clean: "clean", filesystem.Repaired: "repaired", filesystem.NeedsReplay: "needs replay", filesystem.Damaged: "damaged",
		9: "State(9)",
	} {
		require.Equal(t, want, state.String())
	}
}

// TestUnknownFilesystemIsUnsupported: only those of the table are supported.
func TestUnknownFilesystemIsUnsupported(t *testing.T) {
	t.Parallel()

	for _, name := range filesystem.Names() {
		require.True(t, filesystem.IsSupported(name), "want: %s is supported", name)
		require.NotEmpty(t, filesystem.KernelNeeds(name), "want: %s has its needs of a kernel", name)
		require.NotEmpty(t, filesystem.Tools(name), "want: %s has tools", name)
	}

	for _, name := range []string{"", "ext3", "EXT4"} {
		require.False(t, filesystem.IsSupported(name), "want: %q is not supported", name)
		require.Empty(t, filesystem.KernelNeeds(name), "want: an unknown filesystem needs nothing")
		require.Empty(t, filesystem.Tools(name), "want: an unknown filesystem has no tools")

		_, err := filesystem.ByName(name, nil)
		require.ErrorIs(t, err, filesystem.ErrUnknown)
	}
}

// TestCheckReplayed replays a log once, and only if the check requires it.
func TestCheckReplayed(t *testing.T) {
	t.Parallel()

	errFailed := errors.New("the device is gone")

	type verdict struct {
		state filesystem.State
		err   error
	}

	for name, test := range map[string]struct {
		checks  []verdict
		replay  error
		want    verdict
		replays int
	}{
		"clean":          {checks: []verdict{{filesystem.Clean, nil}}, want: verdict{filesystem.Clean, nil}},
		"damaged":        {checks: []verdict{{filesystem.Damaged, nil}}, want: verdict{filesystem.Damaged, nil}},
		"no verdict":     {checks: []verdict{{filesystem.NeedsReplay, errFailed}}, want: verdict{filesystem.NeedsReplay, errFailed}},
		"replayed":       {checks: []verdict{{filesystem.NeedsReplay, nil}, {filesystem.Repaired, nil}}, want: verdict{filesystem.Repaired, nil}, replays: 1},
		"damaged behind": {checks: []verdict{{filesystem.NeedsReplay, nil}, {filesystem.Damaged, nil}}, want: verdict{filesystem.Damaged, nil}, replays: 1},
		"dirty again":    {checks: []verdict{{filesystem.NeedsReplay, nil}, {filesystem.NeedsReplay, nil}}, want: verdict{filesystem.NeedsReplay, nil}, replays: 1},
		"not replayed":   {checks: []verdict{{filesystem.NeedsReplay, nil}}, replay: errFailed, want: verdict{filesystem.Clean, errFailed}, replays: 1},
	} {
		checks, replays := 0, 0

		got, err := filesystem.CheckReplayed(func() (filesystem.Verdict, error) {
			checks++

			return filesystem.Verdict{State: test.checks[checks-1].state}, test.checks[checks-1].err
		}, func() error {
			replays++

			return test.replay
		})
		require.ErrorIs(t, err, test.want.err, name)
		require.Equal(t, test.want.state, got.State, name)
		require.Equal(t, test.replays, replays, "replays of %s", name)
		require.Len(t, test.checks, checks, "checks of %s", name)
	}
}

// sized is a filesystem with that superblock.
type sized struct {
	filesystem.Filesystem

	bytes int64
	err   error
}

func (s sized) SizeBytes(io.ReaderAt) (int64, error) { return s.bytes, s.err }
func (sized) Name() string                           { return "sized" }

// TestCheckFits refuses a filesystem that is larger than its image, by one byte.
func TestCheckFits(t *testing.T) {
	t.Parallel()

	image := bytes.NewReader(nil)
	require.NoError(t, filesystem.CheckFits(sized{bytes: 99}, image, 100))
	require.NoError(t, filesystem.CheckFits(sized{bytes: 100}, image, 100))
	require.ErrorIs(t, filesystem.CheckFits(sized{bytes: 101}, image, 100), filesystem.ErrTruncated)
	require.NoError(t, filesystem.CheckFits(sized{bytes: 101, err: filesystem.ErrNoSuperblock}, image, 100))

	err := filesystem.CheckFits(sized{bytes: 101, err: unix.EIO}, image, 100)
	require.ErrorIs(t, err, unix.EIO)
	require.NotErrorIs(t, err, filesystem.ErrTruncated)
}

// TestCreateUnnamed leaves no name, also on a filesystem without O_TMPFILE.
func TestCreateUnnamed(t *testing.T) {
	t.Parallel()

	requireUnnamed := func(directory string) {
		t.Helper()

		file, err := filesystem.CreateUnnamed(directory)
		require.NoError(t, err)

		info, err := file.Stat()
		require.NoError(t, err)
		require.True(t, info.Mode().IsRegular(), "want: a regular file")
		require.EqualValues(t, 0o600, info.Mode().Perm(), "want: the file is private")

		left, err := os.ReadDir(directory)
		require.NoError(t, err)
		require.Empty(t, left, "want: the file has no name")
		require.NoError(t, file.Close())
	}

	requireUnnamed(t.TempDir())

	_, err := filesystem.CreateUnnamed(filepath.Join(t.TempDir(), "missing"))
	require.ErrorIs(t, err, os.ErrNotExist)

	_, err = filesystem.CreateUnnamed("/proc")
	require.Error(t, err, "want: an error where no file can be made")

	needRoot(t)

	without := t.TempDir()
	if err := unix.Mount("mqueue", without, "mqueue", 0, ""); err != nil {
		t.Skip("no filesystem without O_TMPFILE: ", err)
	}

	t.Cleanup(func() { require.NoError(t, unix.Unmount(without, unix.MNT_DETACH)) })

	_, err = os.OpenFile(without, unix.O_TMPFILE|os.O_RDWR, 0o600)
	require.ErrorIs(t, err, unix.EOPNOTSUPP)
	requireUnnamed(without)
}

// TestIsClaimed observes whether a mount or a program has claimed a device.
func TestIsClaimed(t *testing.T) {
	t.Parallel()

	_, err := filesystem.IsClaimed(filepath.Join(t.TempDir(), "missing"))
	require.ErrorIs(t, err, os.ErrNotExist)

	needRoot(t)

	image, err := os.Create(filepath.Join(t.TempDir(), "image"))
	require.NoError(t, err)

	defer image.Close()

	require.NoError(t, image.Truncate(mebibyte))

	device := attachClaimed(t, image)

	claimed, err := filesystem.IsClaimed(device)
	require.NoError(t, err)
	require.False(t, claimed, "want: an open device is not claimed")

	holder, err := unix.Open(device, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	require.NoError(t, err)

	claimed, err = filesystem.IsClaimed(device)
	require.NoError(t, err)
	require.True(t, claimed, "want: a device that is open exclusively is claimed")
	require.NoError(t, unix.Close(holder))
}

// TestFilesystemProperties: XFS alone has to be unmounted after a growth, and refuses a second UUID.
func TestFilesystemProperties(t *testing.T) {
	t.Parallel()

	for _, name := range filesystem.Names() {
		fs := byName(t, name)
		require.Equal(t, name != filesystem.XFS, fs.GrowthSurvivesCrash(), "growth of %s survives a crash", name)
		require.Equal(t, name == filesystem.XFS, len(fs.DuplicateUUIDFlags()) > 0, "%s needs a flag for a second UUID", name)

		_, err := fs.HasUUID(strings.NewReader(""), "01a20000-0000-7000-8000-000000000001")
		require.ErrorIs(t, err, filesystem.ErrNoSuperblock, name)
	}
}

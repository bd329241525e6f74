package direct

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/loopsys"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

var (
	own     = map[int]loopsys.Device{1: {Image: "/pool/" + idA + ".img", Sequence: 7}}
	taken   = map[int]loopsys.Device{1: {Image: "/pool/other.img", Sequence: 8}}
	unknown = map[int]loopsys.Device{1: {Image: "/pool/" + idA + ".img", Broken: true}}
)

// unsafe lets others write the directory of the assignments.
func (m *machine) unsafe(t *testing.T) {
	t.Helper()
	require.NoError(t, os.Chmod(m.root, 0o777))
}

// unreadable has the assignments in a directory that cannot be opened.
func (m *machine) unreadable() {
	m.config.Runtimes.Root = kata.NewRoot("/" + strings.Repeat("x", 300))
}

// TestAFailedPublicationAssignsNothing: a runtime would give the device to a guest.
func TestAFailedPublicationAssignsNothing(t *testing.T) {
	t.Parallel()

	busy := errors.New("a check does not end")

	for name, test := range map[string]struct {
		devices map[int]loopsys.Device
		prepare func(t *testing.T, m *machine, target string)
		says    string
	}{
		"a file is at the target path": {own, func(t *testing.T, _ *machine, target string) {
			t.Helper()
			require.NoError(t, os.WriteFile(target, nil, 0o600))
		}, "target"},
		"a check does not end":  {own, func(_ *testing.T, m *machine, _ string) { m.checker.err = busy }, busy.Error()},
		"its device is unknown": {unknown, func(*testing.T, *machine, string) {}, "loop1"},
	} {
		m, v, path := assigned(t, test.devices)
		require.NoError(t, m.config.Runtimes.Root.Remove(path))
		test.prepare(t, m, path)

		target, err := m.config.Dirs.Target(path)
		require.NoError(t, err)
		errtext.Require(t, m.Publish(t.Context(), v, v.Publications[0], target), test.says, name)
		target.Close()

		require.False(t, m.isAssigned(t, path), "want: nothing is assigned: %s", name)

		if m.checker.within != nil {
			require.Error(t, m.checker.within.Err(), "want: the wait for the check has ended: %s", name)
		}
	}
}

// TestAVolumeIsPublishedWhileASandboxHasIt, also after its target path was unmounted.
func TestAVolumeIsPublishedWhileASandboxHasIt(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		devices map[int]loopsys.Device
		prepare func(t *testing.T, m *machine, target string)
		want    bool
		code    codes.Code
	}{
		"a sandbox has it":   {own, func(t *testing.T, m *machine, target string) { t.Helper(); m.guest(t, target, "exit 0") }, true, codes.OK},
		"none has it":        {own, func(*testing.T, *machine, string) {}, false, codes.OK},
		"its device is gone": {nil, func(t *testing.T, m *machine, target string) { t.Helper(); m.guest(t, target, "exit 0") }, false, codes.OK},
		"it is unknown which device it has": {unknown, func(t *testing.T, m *machine, target string) {
			t.Helper()
			m.guest(t, target, "exit 0")
		}, false, codes.Unavailable},
		"it is not assigned": {own, func(t *testing.T, m *machine, target string) {
			t.Helper()
			require.NoError(t, m.config.Runtimes.Root.Remove(target))
		}, false, codes.OK},
		"it is unknown whether": {own, func(_ *testing.T, m *machine, _ string) { m.unreadable() }, false, codes.Unavailable},
	} {
		m, v, target := assigned(t, test.devices)
		test.prepare(t, m, target)

		published, err := m.IsPublished(v, v.Publications[0])
		rpccode.Require(t, err, test.code, name)
		require.Equal(t, test.want, published, "want: it is published if a sandbox has it: %s", name)
	}
}

// TestWhetherAnotherVolumeIsAssigned: it can be used while the directory of assignments is not safe.
func TestWhetherAnotherVolumeIsAssigned(t *testing.T) {
	t.Parallel()

	v := used(idA, nil)

	m, _, target := assigned(t, own)
	rpccode.Require(t, m.Guard.CheckNotAssigned(v), codes.FailedPrecondition)
	require.NoError(t, m.config.Runtimes.Root.Remove(target))
	require.NoError(t, m.Guard.CheckNotAssigned(v))
	m.unsafe(t)
	require.NoError(t, m.Guard.CheckNotAssigned(v))
	m.unreadable()
	rpccode.Require(t, m.Guard.CheckNotAssigned(v), codes.Unavailable)

	m, _, _ = assigned(t, unknown)
	rpccode.Require(t, m.Guard.CheckNotAssigned(v), codes.Unavailable)
}

// TestAVolumeThatAGuestMayHaveIsNotStaged, which is reported to its checks.
func TestAVolumeThatAGuestMayHaveIsNotStaged(t *testing.T) {
	t.Parallel()

	m, v, _ := assigned(t, own)
	err := m.Stage(t.Context(), v, nil)
	errtext.Require(t, err, "is assigned to a virtual machine")
	require.Equal(t, []error{err}, m.checker.failures)
}

// TestAFailedRevocationIsReported, whatever is at the target path.
func TestAFailedRevocationIsReported(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		// name is the target path's, beneath the file "file".
		name   string
		unsafe bool
		want   error
	}{
		"its parent is missing":                  {"missing/target", false, nil},
		"its parent is missing, and unsafe":      {"missing/target", true, kata.ErrUnsafeRoot},
		"its parent is a file":                   {"file/target", false, mount.ErrWrongType},
		"its parent is a file, and it is unsafe": {"file/target", true, kata.ErrUnsafeRoot},
	} {
		m, v, _ := assigned(t, nil)
		target := filepath.Join(m.kubelet, test.name)
		v.Publications = []staged.Publication{{TargetPath: target, Capability: v.Capability}}

		require.NoError(t, os.WriteFile(filepath.Join(m.kubelet, "file"), nil, 0o600))
		require.NoError(t, m.config.Runtimes.Root.Put(kata.Assignment{TargetPath: target, Device: "/dev/loop1", FSType: "ext4"}))

		if test.unsafe {
			m.unsafe(t)
		}

		require.ErrorIs(t, m.Assignments.RevokeLost(v), test.want, name)
		require.NoError(t, os.Chmod(m.root, 0o700))
		require.Equal(t, test.unsafe, m.isAssigned(t, target), "want: it is not assigned any more: %s", name)
	}
}

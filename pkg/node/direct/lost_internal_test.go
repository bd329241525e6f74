package direct

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/loopsys"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// assigned is a machine with a direct volume that is published at a target path.
func assigned(t *testing.T, devices map[int]loopsys.Device) (*machine, *staged.Volume, string) {
	t.Helper()

	m := newMachine(t, devices)
	target := filepath.Join(m.kubelet, "target")
	v := used(idA, directly)
	v.Publications = []staged.Publication{{TargetPath: target, Capability: v.Capability}}
	m.devices.Raw().Add(idA, 1, 7, false)
	require.NoError(t, m.config.Runtimes.Root.Put(kata.Assignment{TargetPath: target, Device: "/dev/loop1", FSType: "ext4"}))

	return m, v, target
}

func (m *machine) isAssigned(t *testing.T, target string) bool {
	t.Helper()

	_, ok, err := m.config.Runtimes.Root.Get(target)
	require.NoError(t, err)

	return ok
}

// TestALostDeviceIsRevoked has a direct volume whose device is still its own, was taken, or is gone.
func TestALostDeviceIsRevoked(t *testing.T) {
	t.Parallel()

	remove := func(m *machine, target string) error { return m.config.Runtimes.Root.Remove(target) }
	unsafe := func(m *machine, _ string) error { return os.Chmod(m.root, 0o777) }

	for name, test := range map[string]struct {
		devices map[int]loopsys.Device
		change  func(m *machine, target string) error
		direct  bool
		want    bool
	}{
		"its own":                         {own, nil, true, false},
		"gone":                            {nil, nil, true, true},
		"taken":                           {taken, nil, true, true},
		"gone, and unassigned":            {nil, remove, true, false},
		"gone, and it is unknown whether": {nil, unsafe, true, true},
		"gone, of no direct volume":       {nil, nil, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m, v, target := assigned(t, test.devices)
			v.Parameters.DirectAssign = test.direct

			if test.change != nil {
				require.NoError(t, test.change(m, target))
			}

			lost, err := m.Assignments.HasLost(v)
			require.NoError(t, err)
			require.Equal(t, test.want, lost, "want: a device that is gone is assigned")

			require.NoError(t, os.Chmod(m.root, 0o700))
			require.NoError(t, m.Assignments.RevokeLost(v))
			require.Equal(t, !test.want && test.change == nil, m.isAssigned(t, target), "want: only a lost device is revoked")
		})
	}

	m, v, _ := assigned(t, own)
	require.NoError(t, unsafe(m, ""))
	errtext.Require(t, m.Assignments.Restore(v), "restore the assignment of volume "+idA, "want: the volume is named")

	m, v, target := assigned(t, map[int]loopsys.Device{1: {Image: "/pool/other.img", Sequence: 8, Broken: true}})

	_, err := m.Assignments.HasLost(v)
	rpccode.Require(t, err, codes.Unavailable, "unknown is not absent")
	require.Error(t, m.Assignments.RevokeLost(v), "want: unknown is not lost")
	require.True(t, m.isAssigned(t, target), "want: what is unknown is not revoked")
}

// TestAnUnrecordedAssignmentIsRemoved unless it may be another volume's.
func TestAnUnrecordedAssignmentIsRemoved(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		devices map[int]loopsys.Device
		entry   string
		// unstaged means that its devices have to be detached.
		unstaged bool
		want     bool
		code     codes.Code
	}{
		"its device, gone":           {nil, "/dev/loop1", false, true, codes.OK},
		"its device, gone, unstaged": {nil, "/dev/loop1", true, true, codes.OK},
		"its device, unknown":        {unknown, "/dev/loop1", false, false, codes.Unavailable},
		"its device":                 {own, "/dev/loop1", false, true, codes.OK},
		"another disk":               {nil, "/dev/sda", false, false, codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m, v, target := assigned(t, test.devices)
			require.NoError(t, m.config.Runtimes.Root.Put(kata.Assignment{TargetPath: target, Device: test.entry, FSType: "ext4"}))

			if !test.unstaged { // its device stays
				require.NoError(t, m.config.Volumes.Put(t.Context(), v.WithoutPublication(target)))
			}

			err := m.Assignments.RemoveUnrecorded(t.Context(), idA, target)
			rpccode.Require(t, err, test.code)
			require.Equal(t, test.want, !m.isAssigned(t, target), "want: only the volume's assignment is removed")
			require.NoError(t, m.Assignments.RemoveUnrecorded(t.Context(), idA, filepath.Join(m.kubelet, "none")), "want: no assignment is no error")

			require.NoError(t, os.Chmod(m.root, 0o777))
			require.NoError(t, m.Assignments.RemoveUnrecorded(t.Context(), idA, target), "want: the volume may never have been a direct one")
			m.unreadable()
			rpccode.Require(t, m.Assignments.RemoveUnrecorded(t.Context(), idA, target), codes.Unavailable, "unknown is not absent")
		})
	}
}

// TestNoGuestMayHaveIt refuses a volume whose device is assigned, wherever it is.
func TestNoGuestMayHaveIt(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		devices map[int]loopsys.Device
		of      *staged.Volume
		says    string
	}{
		"its device":  {own, used(idA, directly), "its device /dev/loop1 is assigned to a virtual machine"},
		"gone":        {nil, used(idA, directly), ""},
		"unreadable":  {map[int]loopsys.Device{1: {Image: "/pool/other.img", Broken: true}}, used(idA, directly), "unknown whether"},
		"of no image": {own, used("none", directly), "unknown whether"},
	} {
		m, _, target := assigned(t, test.devices)

		err := m.Guard.CheckNoGuest(test.of)
		if test.says == "" {
			require.NoError(t, err, name)
		} else {
			errtext.Require(t, err, test.says, name)
		}

		require.NoError(t, m.config.Runtimes.Root.Remove(target))
		require.NoError(t, m.Guard.CheckNoGuest(test.of), name)

		require.NoError(t, os.Chmod(m.root, 0o777))
		require.ErrorIs(t, m.Guard.CheckNoGuest(test.of), kata.ErrUnsafeRoot, name)
	}
}

package direct

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/loopsys"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// guest has the assignment of the volume taken by a sandbox whose runtime answers as the script says.
func (m *machine) guest(t *testing.T, target, script string) {
	t.Helper()

	program := filepath.Join(t.TempDir(), "runtime")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(m.root, base64.URLEncoding.EncodeToString([]byte(target)), "sandbox"), nil, 0o600))

	m.config.Runtimes.Guest = kata.NewGuest(kata.GuestConfig{KataRuntime: program, Timeout: time.Minute})
}

// TestAGuestGrowsItsVolume has a published volume grow in a guest that can, cannot, and does not answer.
func TestAGuestGrowsItsVolume(t *testing.T) {
	t.Parallel()

	const size = 64 << 20

	unassign := func(m *machine, target string) error { return m.config.Runtimes.Root.Remove(target) }
	unsafe := func(m *machine, _ string) error { return os.Chmod(m.root, 0o777) }

	for name, test := range map[string]struct {
		filled   int64
		readOnly bool
		script   string
		change   func(m *machine, target string) error
		code     codes.Code
		says     string
	}{
		"done":            {size - 1, false, "exit 0", nil, codes.OK, ""},
		"nothing to do":   {size, false, "exit 1", nil, codes.OK, ""},
		"unimplemented":   {0, false, "echo unimplemented >&2; exit 1", nil, codes.FailedPrecondition, "the guest does not grow it"},
		"no answer":       {0, false, "echo other words >&2; exit 1", nil, codes.Unavailable, "did not answer"},
		"read-only":       {0, true, "exit 0", nil, codes.FailedPrecondition, "it has the volume read-only"},
		"assignment gone": {0, false, "exit 0", unassign, codes.FailedPrecondition, "the guest does not grow it"},
		"unknown whether": {0, false, "exit 0", unsafe, codes.FailedPrecondition, "not a safe directory"},
		"not recorded": {
			0, false, "exit 0", func(m *machine, _ string) error { m.closeStore(); return nil }, codes.Internal, "record volume",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m, v, target := assigned(t, nil)
			v.FilledBytes, v.Publications[0].ReadOnly = test.filled, test.readOnly
			require.NoError(t, m.config.Volumes.Put(t.Context(), v))
			m.guest(t, target, test.script)

			if test.change != nil {
				require.NoError(t, test.change(m, target))
			}

			err := m.grow(t.Context(), v, size)
			rpccode.Require(t, err, test.code)

			want := test.filled
			if err == nil {
				want = size
			} else {
				errtext.Require(t, err, test.says)
				require.NotContains(t, err.Error(), "other words", "want: the words of a runtime are not in the answer")
			}

			recorded, _ := m.config.Volumes.Get(idA)
			require.Equal(t, want, recorded.FilledBytes, "want: the size is recorded once the filesystem has it")
		})
	}
}

// TestTheUsageInAGuestIsNotTrusted has a guest report as much as its device has, and more.
func TestTheUsageInAGuestIsNotTrusted(t *testing.T) {
	t.Parallel()

	const size = 64 << 20

	for total, reported := range map[int64]bool{size: true, size + 1: false} {
		m, v, target := assigned(t, nil)
		m.guest(t, target, fmt.Sprintf(`echo '{"usage":[{"unit":1,"total":%d,"used":1,"available":2}]}'`, total))

		usage, err := m.Assignments.GuestUsage(t.Context(), v, size)
		require.Equal(t, mount.Amount{Total: total, Used: 1, Available: 2}, usage.Bytes)

		if reported {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, kata.ErrNoAnswer)
		}

		require.NoError(t, m.config.Runtimes.Root.Remove(target))

		_, err = m.Assignments.GuestUsage(t.Context(), v, size)
		require.ErrorIs(t, err, kata.ErrNoSandbox)
	}
}

// TestDirectVolumesAreListed in the order of their target paths.
func TestDirectVolumesAreListed(t *testing.T) {
	t.Parallel()

	m, v, target := assigned(t, map[int]loopsys.Device{2: {Image: "/pool/other.img", Sequence: 9}})
	v.Publications = append(v.Publications, staged.Publication{TargetPath: filepath.Join(m.kubelet, "a"), ReadOnly: true, Capability: v.Capability})
	m.guest(t, target, "exit 1")
	require.NoError(t, m.config.Volumes.Put(t.Context(), v))

	other := used(idB, func(v *staged.Volume) { directly(v); v.ReadOnly = true })
	other.Publications = []staged.Publication{{TargetPath: filepath.Join(m.kubelet, "b"), Capability: other.Capability}}
	require.NoError(t, m.config.Volumes.Put(t.Context(), other))

	raw := used("01890000-0000-7000-8000-00000000000c", rawVolume)
	raw.Publications = []staged.Publication{{TargetPath: filepath.Join(m.kubelet, "c"), Capability: raw.Capability}}
	require.NoError(t, m.config.Volumes.Put(t.Context(), raw))
	m.devices.Raw().Add(idB, 2, 8, false)

	listed, err := m.Assignments.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, []kata.AssignedVolume{
		{VolumeID: idA, TargetPath: filepath.Join(m.kubelet, "a"), FSType: "ext4", Options: []string{"ro"}, ReadOnly: true},
		{VolumeID: idB, TargetPath: filepath.Join(m.kubelet, "b"), FSType: "ext4", Options: []string{"ro"}, ReadOnly: true},
		{VolumeID: idA, TargetPath: target, FSType: "ext4", Options: []string{}, Device: "/dev/null/none/loop1", Sandbox: "sandbox"},
	}, listed)

	m.sys.Attach(t, 2, loopsys.Device{Image: "/pool/other.img", Broken: true})

	_, err = m.Assignments.List(t.Context())
	require.Error(t, err, "want: an unreadable device is not listed as none")

	m.sys.Attach(t, 2, loopsys.Device{Image: "/pool/other.img", Sequence: 9})
	require.NoError(t, os.Chmod(m.root, 0o777))

	_, err = m.Assignments.List(t.Context())
	require.Error(t, err, "want: what is unknown is not listed")
}

// TestAVolumeThatAGuestMayHaveIsNotGrownHere, nor one whose device cannot be opened.
func TestAVolumeThatAGuestMayHaveIsNotGrownHere(t *testing.T) {
	t.Parallel()

	const size = 64 << 20

	m, v, target := assigned(t, map[int]loopsys.Device{1: {Image: "/pool/" + idA + ".img", Sequence: 7}})
	v = v.WithoutPublication(target)
	require.NoError(t, m.config.Volumes.Put(t.Context(), v))
	errtext.Require(t, m.grow(t.Context(), v, size), "is assigned to a virtual machine")

	require.NoError(t, m.config.Runtimes.Root.Remove(target))
	require.Error(t, m.grow(t.Context(), v, size), "want: its device cannot be opened")

	recorded, _ := m.config.Volumes.Get(idA)
	require.Zero(t, recorded.FilledBytes, "want: only what has grown is recorded")

	m.sys.Attach(t, 1, loopsys.Device{Image: "/pool/other.img", Broken: true})

	_, err := m.Expand(t.Context(), v, "/staging", nil)
	errtext.Require(t, err, "loop1", "want: what is unknown is not grown")
}

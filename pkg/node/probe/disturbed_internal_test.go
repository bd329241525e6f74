package probe

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/holder"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/pkg/node/device"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// disturbed is a prober of a volume of a kind of onceKinds, to which something happens.
type disturbed struct {
	*onceProbe

	t         *testing.T
	directory string
}

func newDisturbed(t *testing.T, name string) *disturbed {
	t.Helper()

	directory, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)

	d := &disturbed{onceProbe: &onceProbe{}, t: t, directory: directory}

	for _, kind := range onceKinds() {
		if kind.name == name {
			d.kind = kind
		}
	}

	d.kind.prepare(t, directory)
	require.NoError(t, d.begin(t.Context(), directory))
	t.Cleanup(func() { require.NoError(t, d.end()) })

	return d
}

func (d *disturbed) in(name string) string { return filepath.Join(d.directory, "kubelet", name) }

func (d *disturbed) unmount(name string) {
	d.t.Helper()
	require.NoError(d.t, unix.Unmount(d.in(name), unix.MNT_DETACH))
}

func (d *disturbed) remount(name string, flags uintptr) {
	d.t.Helper()
	require.NoError(d.t, unix.Mount("", d.in(name), "", unix.MS_REMOUNT|flags, ""))
}

// stored is the path of the volume in its pool.
func (d *disturbed) stored() string {
	used := d.kind.record(d.directory)

	return d.used().pool.ObjectPath(used.Object())
}

func (d *disturbed) used() *onceNode {
	used, ok := d.config.Volumes.(*onceNode)
	require.True(d.t, ok, "want: the node is the test's")

	return used
}

// move moves the volume in its pool away.
func (d *disturbed) move() {
	d.t.Helper()
	require.NoError(d.t, os.Rename(d.stored(), filepath.Join(d.directory, "moved"+layout.ImageSuffix)))
}

// fail has the kernel count an error of the filesystem.
func (d *disturbed) fail() {
	d.t.Helper()

	attribute := func(name string) string { return fmt.Sprintf("/sys/fs/ext4/loop%d/%s", d.used().devices.Staged, name) }
	require.NoError(d.t, os.WriteFile(attribute("trigger_fs_error"), []byte("test"), 0))
	require.Eventually(d.t, func() bool {
		count, err := os.ReadFile(attribute("errors_count"))

		return err == nil && string(count) != "0\n"
	}, time.Minute, time.Millisecond, "want: the error is counted, which the kernel does later")
}

// TestProbesFindDisturbances of volumes that are mounted and attached.
func TestProbesFindDisturbances(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, test := range map[string]struct {
		kind   string
		happen func(d *disturbed)
		// seen means that a probe has found the volume healthy before.
		seen    bool
		want    []health.Reason
		message string
		// suspected means that the finding is remembered until a check.
		suspected bool
	}{
		"staging path unmounted": {
			kind: "image", happen: func(d *disturbed) { d.unmount("staging") },
			want: []health.Reason{health.VolumeUnmounted}, message: "not mounted any more; stage it again: ",
		},
		"target path hidden": {
			kind: "image", happen: func(d *disturbed) { d.kind.mount(d.t, "none", d.in("target"), "tmpfs", 0) },
			want: []health.Reason{health.VolumeUnmounted}, message: "hidden by another mount; restart its pod: ",
		},
		"target path removed": {
			kind: "directory", happen: func(d *disturbed) { d.unmount("target"); require.NoError(d.t, os.Remove(d.in("target"))) },
			want: []health.Reason{health.VolumeUnmounted}, message: "not mounted any more; restart its pod: ",
		},
		"mount made read-only": {
			kind: "image", happen: func(d *disturbed) { d.remount("staging", unix.MS_BIND|unix.MS_RDONLY) },
			want: []health.Reason{health.ReadOnlyRemount}, message: "its mount was made read-only; ",
		},
		"read-only at the target": {kind: "image", happen: func(d *disturbed) { d.remount("target", unix.MS_BIND|unix.MS_RDONLY) }},
		"raw and read-only":       {kind: "raw", happen: func(d *disturbed) { d.remount("target", unix.MS_BIND|unix.MS_RDONLY) }},
		"filesystem made read-only": {
			kind: "image", happen: func(d *disturbed) { d.remount("staging", unix.MS_RDONLY) },
			want: []health.Reason{health.ReadOnlyRemount}, message: "its filesystem was made read-only; ",
		},
		"image moved": {
			kind: "image", happen: (*disturbed).move, seen: true,
			want: []health.Reason{health.BackingFileMissing}, message: "its image was moved or deleted; put it back into the pool",
		},
		"image deleted": {
			kind: "image", happen: func(d *disturbed) {
				require.NoError(d.t, os.Remove(d.stored()))

				number := d.used().devices.Staged
				require.Equal(d.t, putBack, remedyOfLost(d.config.Loops, &Attachment{Number: number}), "want: another image's device has no data of it")
			}, seen: true,
			want: []health.Reason{health.BackingFileMissing}, message: "its image was moved or deleted; copy its device before it is unmounted",
		},
		"directory of a target path removed": {
			kind: "image", happen: func(d *disturbed) {
				used := d.used().inUse[d.kind.id()]
				used.Publications = append(used.Publications, staged.Publication{TargetPath: filepath.Join(d.in("removed"), "target")})
			},
			want: []health.Reason{health.VolumeUnmounted}, message: "not mounted any more; restart its pod: ",
		},
		"image replaced": {
			kind: "image", seen: true, happen: func(d *disturbed) {
				d.move()
				require.NoError(d.t, d.used().pool.Images.Create(d.kind.id(), onceBytes, false))
			},
			want: []health.Reason{health.BackingFileMissing}, message: "its image was replaced by another file; ",
		},
		"image truncated": {
			kind: "image", happen: func(d *disturbed) { require.NoError(d.t, os.Truncate(d.stored(), onceBytes-4096)) },
			want: []health.Reason{health.BackingFileTruncated}, message: "its image is shorter than its device", suspected: true,
		},
		"an error of the filesystem": {
			kind: "image", happen: (*disturbed).fail,
			want: []health.Reason{health.FilesystemCorrupted}, message: "the kernel has found its filesystem corrupted", suspected: true,
		},
		"directory moved": {
			kind: "directory", happen: (*disturbed).move, seen: true,
			want: []health.Reason{health.VolumeNotFound}, message: "its directory was moved or deleted; ",
		},
		"directory replaced": {
			kind: "directory", seen: true, happen: func(d *disturbed) {
				d.move()
				require.NoError(d.t, d.used().pool.Directories.Create(d.kind.id(), 0, false))
			},
			want: []health.Reason{health.VolumeNotFound}, message: "its directory was replaced by another one; ",
		},
		"another image at its device": {
			kind: "raw", happen: func(d *disturbed) { d.used().devices.StagedSequence++ },
			want: []health.Reason{health.DeviceMissing}, message: "detached from its loop device",
		},
		"another image at its second device": {
			kind: "raw", happen: func(d *disturbed) { d.used().devices.ReadOnlySequence++ },
			want: []health.Reason{health.DeviceMissing}, message: "detached from its loop device",
		},
		"published for reading alone": {kind: "raw", happen: func(d *disturbed) { d.used().devices.ReadOnly = device.None }},
		"another mount of a guest's": {
			kind: "direct", happen: func(d *disturbed) { d.kind.mount(d.t, "none", d.in("target"), "tmpfs", 0) },
			want: []health.Reason{health.VolumeUnmounted}, message: "hidden by another mount; restart its pod: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := newDisturbed(t, test.kind)
			if test.seen {
				require.NoError(t, d.run())
				require.NoError(t, d.wrong)
			}

			test.happen(d)

			observed, err := d.probe(t.Context(), d.kind.id())
			require.NoError(t, err)
			require.Equal(t, test.want, reasons(observed.Entries))

			if test.want != nil {
				require.Contains(t, observed.Entries[0].Message, test.message)
			}

			require.Equal(t, test.suspected, d.config.Checker.Get(d.kind.id()).Suspicion != nil, "want: only errors of the filesystem are remembered")
		})
	}
}

// TestTheMountsOfAVolumeAreObserved: only an event about them is a reason to probe it again.
func TestTheMountsOfAVolumeAreObserved(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := newDisturbed(t, "image")
	changed := func() []string { return d.volumesAffectedBy(health.Event{Kind: health.MountsChanged}) }

	require.NoError(t, d.run())
	require.Empty(t, changed(), "want: the mounts are as they were observed")

	number := d.used().devices.Staged
	require.Equal(t, []string{d.kind.id()}, d.observations.atDevice(unix.Mkdev(loop.Major, uint32(number))), "want: the device is known")

	d.unmount("target")
	require.Equal(t, []string{d.kind.id()}, changed())

	_, err := d.probe(t.Context(), d.kind.id())
	require.NoError(t, err)
	require.Equal(t, []string{d.kind.id()}, changed(), "want: a mount that was missing may be back")
}

// TestNoProbeOpensAVolumeDuringItsUnmount, which keeps the last observation.
func TestNoProbeOpensAVolumeDuringItsUnmount(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := newDisturbed(t, "image")
	reopen := d.gate.Close(d.kind.id())

	observed, err := d.probe(t.Context(), d.kind.id())
	require.ErrorIs(t, err, health.ErrKeep)
	require.Equal(t, health.Observation{Again: retryAfterChange}, observed)
	reopen()
	require.NoError(t, d.run())
}

// TestABusyDeviceIsACondition with the process that is found.
func TestABusyDeviceIsACondition(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, test := range map[string]struct {
		happen  func(d *disturbed, device string)
		message string
	}{
		"none is visible": {func(*disturbed, string) {}, "not detached: a process not visible here keeps it in use"},
		"it is open": {func(d *disturbed, device string) {
			file, err := os.Open(device)
			require.NoError(d.t, err)
			defer file.Close()

			// This process is not one that it reports.
			command := exec.Command("sleep", "1000")
			command.Stdin = file
			require.NoError(d.t, command.Start())
			d.t.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
		}, "keeps it in use; end it"},
		"it is mounted": {func(d *disturbed, device string) {
			d.kind.mount(d.t, device, d.in("mounted"), "ext4", 0)
		}, "keeps it in use; end it or unmount "},
		"another image is attached": {func(d *disturbed, _ string) {
			d.busy.add(d.kind.id(), busyVolume{device: Attachment{Number: d.used().devices.Staged, Sequence: 1}})
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := newDisturbed(t, "busy")
			number, sequence := d.used().devices.Staged, d.used().devices.StagedSequence
			d.busy.forget(d.kind.id())
			d.busy.add(d.kind.id(), busyVolume{device: Attachment{Number: number, Sequence: sequence}})
			test.happen(d, d.config.Loops.Path(number))

			view, _ := d.view(d.kind.id())
			s := d.newState(view)
			require.NoError(t, s.busy.report(t.Context(), s.mounts))

			if test.message == "" {
				require.Empty(t, s.entries, "want: the device is detached")

				return
			}

			require.Equal(t, []health.Reason{health.VolumeBusy}, reasons(s.entries))
			require.Contains(t, s.entries[0].Message, test.message)
		})
	}
}

// TestReleasedMountIsNotBusy: the process that kept it in use has ended.
func TestReleasedMountIsNotBusy(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := newDisturbed(t, "image")
	d.busy.add(d.kind.id(), busyVolume{path: d.in("target"), holder: holder.Process{PID: 1 << 30, Command: "ended"}})
	require.NoError(t, d.run())
	require.NoError(t, d.wrong)
	require.False(t, d.busy.isHeld(d.kind.id()), "want: nothing is held any more")
}

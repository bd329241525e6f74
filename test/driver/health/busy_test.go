package health_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestHealthNamesTheMountNamespaceThatKeepsVolumes unstages volumes of which another mount
// namespace has a copy of the mounts. It does not run beside other tests, whose mounts that would
// have as well.
func TestHealthNamesTheMountNamespaceThatKeepsVolumes(t *testing.T) {
	namespace.NeedRoot(t)

	repeated := (&illness{}).admit(t, harness.Relists)
	waiting := &sufferer{Driver: repeated.Driver, claim: harness.NewVolume(t, repeated.Driver, &csi.CreateVolumeRequest{Name: "waiting"})}
	harness.BringUp(t, waiting.Driver, waiting.claim)
	waiting.awaitWell(t)

	both := []*sufferer{repeated, waiting}
	holder := startHolder(t, func(command *exec.Cmd) {
		command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	})

	var unstaging errgroup.Group

	failures := make([]error, len(both))

	for n, p := range both {
		require.NoError(t, p.Unpublish(t.Context(), p.claim))
		unstaging.Go(func() error {
			failures[n] = p.Unstage(t.Context(), p.claim)

			return nil
		})
	}

	require.NoError(t, unstaging.Wait())

	for n, p := range both {
		errtext.Require(t, failures[n], nameOf(t, holder))
		p.awaitBusy(t, nameOf(t, holder))
	}

	repeated.requireSteady(t)

	// The CO repeats its call for one of them, whose device is still attached.
	errtext.Require(t, repeated.Unstage(t.Context(), repeated.claim), nameOf(t, holder))
	repeated.awaitBusy(t, nameOf(t, holder))
	repeated.requireSteady(t)

	// The other one does not count as unmounted by another program until the CO repeats its call.
	end(t, holder)
	repeated.awaitNode(t)
	waiting.awaitNode(t)
	waiting.requireSteady(t)

	for _, p := range both {
		require.NoError(t, p.Unstage(t.Context(), p.claim))
		p.awaitNode(t)
		require.NoError(t, p.Detach(t.Context(), p.claim))
	}
}

// TestHealthNamesTheProcessThatKeepsAMount has a process work in the target path.
func TestHealthNamesTheProcessThatKeepsAMount(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	p := (&illness{}).admit(t, harness.Relists)
	holder := startHolder(t, func(command *exec.Cmd) { command.Dir = p.claim.TargetPath })

	require.Error(t, p.Unpublish(t.Context(), p.claim), "want: a busy target is not unpublished")
	p.awaitBusy(t, nameOf(t, holder))
	p.requireSteady(t)

	// The CO uses it again.
	require.NoError(t, p.Publish(t.Context(), p.claim))
	p.awaitWell(t)

	require.Error(t, p.Unpublish(t.Context(), p.claim), "want: a busy target is not unpublished")
	p.awaitBusy(t, nameOf(t, holder))

	// It is over with the process, without a call.
	end(t, holder)
	p.awaitWell(t)
}

// TestHealthNamesTheProcessThatKeepsARawDevice has another program detach the device of a raw
// block volume while a process has it open, and the driver restarted meanwhile.
func TestHealthNamesTheProcessThatKeepsARawDevice(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	i := illness{volume: rawBlock(), options: []harness.Option{numberedFrom(96_000)}}
	p := i.admit(t, harness.Relists)
	device := harness.DevicesOf(t, p.Driver, p.claim.VolumeID)[0]

	opened, err := os.Open(device.Path)
	require.NoError(t, err)

	holder := startHolder(t, func(command *exec.Cmd) { command.Stdin = opened })
	require.NoError(t, opened.Close())

	ended, cancel := contextThatEnds(t)
	defer cancel()
	require.ErrorIs(t, loop.NewLoops(loop.LoopsOptions{}).Detach(ended, device.Number), loop.ErrInUse)

	p.awaitBusy(t, nameOf(t, holder))
	p.Restart(t, harness.Relists)
	p.awaitBusy(t, nameOf(t, holder))
	p.requireSteady(t)

	end(t, holder)
	p.await(t, diagnosis{node: []health.Reason{health.DeviceMissing}})
	restage(t, p)
	p.awaitWell(t)
}

// TestHealthNamesTheDeviceThatKeepsARawDevice has a loop device attached to a raw block volume, as a
// kubelet does, when it is unstaged; by the path of the device, and by one on which only the program
// that attached it has the node.
func TestHealthNamesTheDeviceThatKeepsARawDevice(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, attach := range map[string]func(t *testing.T, device string) string{
		"a node that is visible here": func(t *testing.T, device string) string { return attachLoop(t, "losetup", "--find", "--show", device) },
		"a node that is not": func(t *testing.T, device string) string {
			elsewhere := filepath.Join(t.TempDir(), "node")
			require.NoError(t, os.WriteFile(elsewhere, nil, 0o600))

			return attachLoop(t, "unshare", "--mount", "sh", "-c", `mount --bind "$0" "$1" && losetup --find --show "$1"`, device, elsewhere)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			p := (&illness{volume: rawBlock()}).admit(t, harness.Relists)
			upper := attach(t, harness.DevicesOf(t, p.Driver, p.claim.VolumeID)[0].Path)

			require.NoError(t, p.Unpublish(t.Context(), p.claim))
			errtext.Require(t, p.Unstage(t.Context(), p.claim), "block device "+upper)
			p.awaitBusy(t, "block device "+upper)
			p.requireSteady(t)

			harness.RunTool(t, 0, "losetup", "--detach", upper)
			require.NoError(t, p.Unstage(t.Context(), p.claim))
			require.NoError(t, p.Detach(t.Context(), p.claim))
		})
	}
}

// attachLoop runs a command that attaches a loop device and prints its path, which it returns. The
// device is detached with its last user at the end of the test.
func attachLoop(t *testing.T, command ...string) string {
	t.Helper()

	device := strings.TrimSpace(harness.RunTool(t, 0, command[0], command[1:]...))
	t.Cleanup(func() { _ = exec.Command("losetup", "--detach", device).Run() })

	return device
}

// contextThatEnds ends at once, but not before it is used.
func contextThatEnds(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()

	return context.WithTimeout(t.Context(), harness.Often)
}

// startHolder starts a process that does nothing until it is ended.
func startHolder(t *testing.T, with func(*exec.Cmd)) *exec.Cmd {
	t.Helper()

	command := exec.Command("sleep", "inf")
	with(command)
	require.NoError(t, child.Start(command))
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})

	// What was forked has the name of the test until it has started the program.
	require.Eventually(t, func() bool {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", command.Process.Pid))

		return err == nil && string(name) == "sleep\n"
	}, await.Limit, time.Millisecond, "want: the program runs")

	return command
}

func end(t *testing.T, command *exec.Cmd) {
	t.Helper()
	require.NoError(t, command.Process.Kill())
	_ = command.Wait()
}

// nameOf returns how errors and messages name a process.
func nameOf(t *testing.T, command *exec.Cmd) string {
	t.Helper()

	var stat unix.Stat_t
	require.NoError(t, unix.Stat(fmt.Sprintf("/proc/%d/ns/mnt", command.Process.Pid), &stat))

	return fmt.Sprintf("process %d (sleep) in mount namespace %d", command.Process.Pid, stat.Ino)
}

// awaitBusy waits until both views report VolumeBusy, and nothing else, with the process.
func (p *sufferer) awaitBusy(t *testing.T, name string) {
	t.Helper()

	p.awaitNode(t, health.VolumeBusy)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		for _, view := range []*viewReport{p.nodeOnly(t, c), p.ofController(t.Context(), c)} {
			view.requireReasons(c, []health.Reason{health.VolumeBusy}, nil)
			require.Contains(c, view.entries[0].GetMessage(), name)

			for _, each := range view.legacy {
				require.Contains(c, each.message, name)
			}
		}
	}, await.Limit, 10*time.Millisecond, "want: the busy volume and the process are reported")
}

// awaitNode waits until the node reports these reasons alone.
func (p *sufferer) awaitNode(t *testing.T, reasons ...health.Reason) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		p.nodeOnly(t, c).requireReasons(c, reasons, nil)
	}, await.Limit, 10*time.Millisecond, "want: the node reports the conditions")
}

// nodeOnly is ofNode without the statistics, which an unstaged volume has not.
func (p *sufferer) nodeOnly(t *testing.T, c require.TestingT) *viewReport {
	t.Helper()

	answer, err := p.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: p.claim.VolumeID})
	require.NoError(c, err)

	return &viewReport{view: "node", entries: answer.GetVolumeHealth().GetHealthStatuses()}
}

// requireSteady requires that the node's answer stays the same through the next probes.
func (p *sufferer) requireSteady(t *testing.T) {
	t.Helper()

	before := p.nodeOnly(t, t).String()

	// Not require.Never: its last call may outlive it, and meet a driver that is shutting down.
	for range 20 {
		time.Sleep(harness.Often)
		require.Equal(t, before, p.nodeOnly(t, t).String())
	}
}

// TestAVolumeThatIsStillAttachedIsNotDeleted attaches an image without a record of it, as a mount in
// another mount namespace keeps it attached: its space would stay in use without a name.
func TestAVolumeThatIsStillAttachedIsNotDeleted(t *testing.T) {
	inBothModes(t, ext4, func(t *testing.T, p *sufferer) {
		controller := p.controller
		require.NoError(t, controller.Detach(t.Context(), p.claim))

		image, err := os.OpenFile(p.image, os.O_RDWR, 0)
		require.NoError(t, err)

		defer image.Close()

		device, err := loop.NewLoops(loop.LoopsOptions{}).Attach(t.Context(), image,
			loop.AttachOptions{AutoClear: true, PreferredNumber: -1})
		require.NoError(t, err)

		opened, err := os.Open(device.Path)
		require.NoError(t, err)

		holder := startHolder(t, func(command *exec.Cmd) { command.Stdin = opened })
		require.NoError(t, opened.Close())
		require.NoError(t, device.Close())
		require.NoError(t, image.Close())

		_, err = controller.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: p.claim.VolumeID})
		if p.Config.Mode == driver.ModeAll {
			harness.RequireCode(t, err, codes.FailedPrecondition, "attached", fmt.Sprintf("process %d (sleep)", holder.Process.Pid))
		} else {
			harness.RequireCode(t, err, codes.FailedPrecondition, "attached", "mount namespaces")
		}

		require.FileExists(t, p.image)
		end(t, holder)
		harness.DeleteVolume(t, controller, p.claim.VolumeID)
		require.NoFileExists(t, p.image)
	})
}

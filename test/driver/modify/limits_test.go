package modify_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

const podUID = "0d3f4a52-7f3e-4f0c-9a51-6d0e2f6b1c11"

// inPod puts the claim's target where the kubelet has it for a pod.
func inPod(d *harness.Driver, claim *csiclient.Publication, uid, name string) {
	claim.TargetPath = filepath.Join(d.Config.KubeletDir, "pods", uid, "volumes", "kubernetes.io~csi", name, "mount")
}

// ruleIs waits until the cgroup's read limit for the number is so many bytes a
// second; 0 is none.
func ruleIs(t *testing.T, cgroup string, number, bytes int) {
	t.Helper()

	want := ""
	if bytes > 0 {
		want = fmt.Sprintf("7:%d %d\n", number, bytes)
	}

	require.Eventually(t, func() bool {
		got, err := os.ReadFile(filepath.Join(cgroup, "blkio.throttle.read_bps_device"))

		return err == nil && string(got) == want
	}, notLong, time.Millisecond, "want %q in %s", want, cgroup)
}

// limited proves that the rule holds: 2 MiB at one a second take as long,
// however fast the machine is.
func limited(t *testing.T, pods *harness.Pods, cgroup, path string) {
	t.Helper()
	require.Greater(t, pods.Read(t, cgroup, path, 2*harness.MiB), time.Second, "want: the reads are as slow as the limit")
}

// free proves that nothing holds it. A busy machine is asked more than once;
// with a limit no answer would be so fast.
func free(t *testing.T, pods *harness.Pods, cgroup, path string) {
	t.Helper()

	for range 20 {
		if pods.Read(t, cgroup, path, 2*harness.MiB) < time.Second {
			return
		}
	}

	require.Fail(t, "it is limited")
}

func TestPodsAreLimited(t *testing.T) {
	namespace.NeedRoot(t)

	for name, capability := range map[string]*csi.VolumeCapability{
		"mount": csiclient.MountCapability(harness.Writer, "ext4"), "block": csiclient.BlockCapability(harness.Writer),
	} {
		t.Run(name, func(t *testing.T) {
			pods := harness.NewPods(t)
			d := harness.Start(t, func(c *driver.Config) { c.Node.CgroupRoot = pods.Root })
			made := harness.NewLifecycle(t, d, harness.Kind{Capability: capability, Bytes: 64 * harness.MiB})
			inPod(d, made.Claim, podUID, "volume")

			early := pods.Container(t, podUID, "early")
			require.NoError(t, harness.Modify(t.Context(), d, made.Claim.VolumeID, map[string]string{"readBytesPerSecond": "1048576"}))
			t.Cleanup(func() { harness.TakeDown(t, d, made.Claim) })
			made.Up()
			sum := made.Write()

			number := loopsOf(t, d, made.Claim.VolumeID)[0].Number
			ruleIs(t, early, number, harness.MiB)
			limited(t, pods, early, harness.DataPath(made.Claim))

			// A container that starts later.
			late := pods.Container(t, podUID, "late")
			ruleIs(t, late, number, harness.MiB)

			require.NoError(t, harness.Modify(t.Context(), d, made.Claim.VolumeID, map[string]string{"readBytesPerSecond": "0"}))
			ruleIs(t, late, number, 0)
			free(t, pods, late, harness.DataPath(made.Claim))

			require.NoError(t, harness.Modify(t.Context(), d, made.Claim.VolumeID, map[string]string{"readBytesPerSecond": "1048576"}))
			limited(t, pods, late, harness.DataPath(made.Claim))

			d.Stop()

			meanwhile := pods.Container(t, podUID, "while no driver runs")

			d.Restart(t)
			ruleIs(t, meanwhile, number, harness.MiB)
			ruleIs(t, late, number, harness.MiB)
			ruleIs(t, pods.Container(t, podUID, "after the restart"), number, harness.MiB)

			made.Holds(sum)
			made.Down()
			ruleIs(t, early, number, 0)
			ruleIs(t, late, number, 0)
			made.Delete()
		})
	}
}

// TestLimitsHoldAgainWhenANodeIsBack has a container start while no driver runs. No
// controller is there to apply the limits for the node.
func TestLimitsHoldAgainWhenANodeIsBack(t *testing.T) {
	namespace.NeedRoot(t)

	pods := harness.NewPods(t)
	d := harness.Start(t, harness.InMode(driver.ModeNode), func(c *driver.Config) { c.Node.CgroupRoot = pods.Root })
	claim := harness.GivenVolume(t, d, csiclient.MountCapability(harness.Writer, "ext4"), nil)
	inPod(d, claim, podUID, "volume")

	limits, err := volume.ParseMutable(map[string]string{volume.KeyReadBytesPerSecond: "1048576"})
	require.NoError(t, err)

	opened, err := pool.Open("default", d.Pool(), pool.Options{})
	require.NoError(t, err)
	require.NoError(t, errors.Join(opened.SetMutable(claim.VolumeID, limits), opened.Close()))

	early := pods.Container(t, podUID, "early")

	harness.Stage(t, d, claim)
	require.NoError(t, os.MkdirAll(filepath.Dir(claim.TargetPath), 0o750))
	require.NoError(t, d.Publish(t.Context(), claim))
	t.Cleanup(func() { require.NoError(t, d.Unpublish(context.WithoutCancel(t.Context()), claim)) })

	number := loopsOf(t, d, claim.VolumeID)[0].Number
	ruleIs(t, early, number, harness.MiB)

	d.Stop()

	meanwhile := pods.Container(t, podUID, "while no driver runs")

	d.Restart(t)
	ruleIs(t, meanwhile, number, harness.MiB)
}

// TestAReadOnlyBlockDeviceIsLimited: it is another device than the writer's.
func TestAReadOnlyBlockDeviceIsLimited(t *testing.T) {
	namespace.NeedRoot(t)

	pods := harness.NewPods(t)
	d := harness.Start(t, func(c *driver.Config) { c.Node.CgroupRoot = pods.Root })
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.MultiWriter)},
		MutableParameters:  map[string]string{"readBytesPerSecond": "1048576"},
	})
	inPod(d, claim, podUID, "volume")

	container := pods.Container(t, podUID, "container")
	harness.BringUp(t, d, claim)

	other := "other-pod"
	readers := pods.Container(t, other, "container")
	reader := *claim
	reader.ReadOnly = true
	inPod(d, &reader, other, "volume")
	require.NoError(t, d.Publish(t.Context(), &reader))

	writers, readersDevice := -1, -1

	for _, each := range loopsOf(t, d, claim.VolumeID) {
		if each.ReadOnly {
			readersDevice = each.Number
		} else {
			writers = each.Number
		}
	}

	ruleIs(t, container, writers, harness.MiB)
	ruleIs(t, readers, readersDevice, harness.MiB)
	require.NoError(t, harness.Modify(t.Context(), d, claim.VolumeID, map[string]string{"readBytesPerSecond": "2097152"}))
	ruleIs(t, container, writers, 2*harness.MiB)
	ruleIs(t, readers, readersDevice, 2*harness.MiB)
	require.NoError(t, d.Unpublish(t.Context(), &reader))
	ruleIs(t, readers, readersDevice, 0)
	ruleIs(t, container, writers, 2*harness.MiB)
}

// TestPodWithTwoPublicationsIsLimited: its limits go with the last one.
func TestPodWithTwoPublicationsIsLimited(t *testing.T) {
	namespace.NeedRoot(t)

	pods := harness.NewPods(t)
	d := harness.Start(t, func(c *driver.Config) { c.Node.CgroupRoot = pods.Root })
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.MultiWriter, "")},
		MutableParameters:  map[string]string{"readBytesPerSecond": "1048576"},
	})
	inPod(d, claim, podUID, "one")

	container := pods.Container(t, podUID, "container")
	harness.BringUp(t, d, claim)

	second := *claim
	inPod(d, &second, podUID, "two")
	require.NoError(t, d.Publish(t.Context(), &second))

	number := loopsOf(t, d, claim.VolumeID)[0].Number
	ruleIs(t, container, number, harness.MiB)
	require.NoError(t, d.Unpublish(t.Context(), &second))
	ruleIs(t, container, number, harness.MiB)
	require.NoError(t, d.Unpublish(t.Context(), claim))
	ruleIs(t, container, number, 0)
}

// TestPodIsTakenFromTheContext: a CSIDriver with podInfoOnMount passes it.
func TestPodIsTakenFromTheContext(t *testing.T) {
	namespace.NeedRoot(t)

	pods := harness.NewPods(t)
	d := harness.Start(t, func(c *driver.Config) { c.Node.CgroupRoot = pods.Root })
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{MutableParameters: map[string]string{"readBytesPerSecond": "1048576"}})
	claim.VolumeContext["csi.storage.k8s.io/pod.uid"] = podUID

	container := pods.Container(t, podUID, "container")
	harness.BringUp(t, d, claim)
	ruleIs(t, container, loopsOf(t, d, claim.VolumeID)[0].Number, harness.MiB)
}

// TestPodThatIsNotFoundIsRefused, since it would run without its limits.
func TestPodThatIsNotFoundIsRefused(t *testing.T) {
	namespace.NeedRoot(t)

	pods := harness.NewPods(t)
	d := harness.Start(t, func(c *driver.Config) { c.Node.CgroupRoot = pods.Root })
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{MutableParameters: map[string]string{"readBytesPerSecond": "1048576"}})
	inPod(d, claim, podUID, "volume")
	harness.AttachAndStage(t, d, claim)

	harness.RequireCode(t, d.Publish(t.Context(), claim), codes.FailedPrecondition, podUID)
	require.NoFileExists(t, claim.TargetPath)

	// The kubelet makes the cgroup, and tries again.
	container := pods.Container(t, podUID, "container")
	require.NoError(t, d.Publish(t.Context(), claim))

	number := loopsOf(t, d, claim.VolumeID)[0].Number
	ruleIs(t, container, number, harness.MiB)

	// A pod that has ended blocks no other pod.
	pods.End(t, podUID)
	require.NoError(t, harness.Modify(t.Context(), d, claim.VolumeID, map[string]string{"readBytesPerSecond": "2097152"}))
	d.Restart(t)
	require.NoError(t, d.Unpublish(t.Context(), claim))

	// A caller that is no pod has the volume without limits.
	claim.TargetPath = filepath.Join(d.Config.KubeletDir, "elsewhere", "mount")
	require.NoError(t, d.Publish(t.Context(), claim))
}

package touchstonetest_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/pkg/touchstonetest"
)

const binaryVar = "TOUCHSTONE_BINARY"

// TestMain builds the driver, and runs the tests in a mount namespace of their own.
func TestMain(m *testing.M) {
	if os.Getenv(binaryVar) == "" || os.Geteuid() == 0 && os.Getenv("TOUCHSTONETEST_INSIDE") == "" {
		os.Exit(runInside())
	}

	os.Exit(m.Run())
}

func runInside() int {
	dir, err := os.MkdirTemp("", "touchstonetest-binary-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)

		return 1
	}
	defer os.RemoveAll(dir)

	binary := os.Getenv(binaryVar)
	if binary == "" {
		binary = filepath.Join(dir, "touchstone")
		build := exec.Command("go", "build", "-trimpath", "-o", binary, "./cmd/touchstone")
		build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")

		if output, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%v\n%s", err, output)

			return 1
		}
	}

	inside := exec.Command("/proc/self/exe", os.Args[1:]...)
	inside.Env = append(os.Environ(), binaryVar+"="+binary, "TOUCHSTONETEST_INSIDE=1")
	inside.Stdout, inside.Stderr = os.Stdout, os.Stderr
	inside.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}

	if os.Geteuid() == 0 {
		inside.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	}

	if err := inside.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)

		return 1
	}

	return 0
}

// wantf fails the test unless the condition holds.
func wantf(t *testing.T, holds bool, format string, args ...any) {
	t.Helper()

	if !holds {
		t.Fatalf("want: "+format, args...)
	}
}

// must returns a function that returns the answer of a call, which has to succeed.
func must[A any](answer A, err error) func(*testing.T) A {
	return func(t *testing.T) A {
		t.Helper()
		wantf(t, err == nil, "no error: %v", err)

		return answer
	}
}

func create(t *testing.T, d *touchstonetest.Driver, name string) *csi.Volume {
	t.Helper()

	return must(d.CreateVolume(t.Context(), request(name)))(t).GetVolume()
}

func attach(t *testing.T, d *touchstonetest.Driver, made *csi.Volume) map[string]string {
	t.Helper()

	return must(d.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
		VolumeId: made.GetVolumeId(), NodeId: touchstonetest.NodeID, VolumeCapability: request("").GetVolumeCapabilities()[0],
		VolumeContext: made.GetVolumeContext(),
	}))(t).GetPublishContext()
}

// use stages and publishes a volume, and undoes both.
func use(t *testing.T, d *touchstonetest.Driver) {
	t.Helper()

	made, capability := create(t, d, "used"), request("").GetVolumeCapabilities()[0]
	id, staging, target := made.GetVolumeId(), filepath.Join(d.Dir, "staging"), filepath.Join(d.Dir, "target")
	wantf(t, os.MkdirAll(staging, 0o750) == nil, "a directory to stage at")

	attached := attach(t, d, made)

	must(d.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: id, StagingTargetPath: staging, VolumeCapability: capability, VolumeContext: made.GetVolumeContext(), PublishContext: attached,
	}))(t)
	must(d.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: id, StagingTargetPath: staging, TargetPath: target, VolumeCapability: capability,
		VolumeContext: made.GetVolumeContext(), PublishContext: attached,
	}))(t)
	must(d.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target}))(t)
	must(d.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging}))(t)
	must(d.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: touchstonetest.NodeID}))(t)
	must(d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id}))(t)
	wantf(t, len(d.AwaitCalls("Node*Volume", 4)) == 4, "AwaitCalls returns all four calls of the node")
}

// TestLifecycle is also run by an ordinary user.
func TestLifecycle(t *testing.T) {
	t.Parallel()

	for name, options := range map[string][]touchstonetest.Option{
		"as this user": nil, "simulated": {touchstonetest.SimulateNode()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			use(t, touchstonetest.Start(t, append(options, touchstonetest.FailOnViolations(), touchstonetest.NoLeaks())...))
		})
	}
}

// TestFaultsOutliveARestart restarts a driver with an active rule, and clears it.
func TestFaultsOutliveARestart(t *testing.T) {
	t.Parallel()

	d := touchstonetest.Start(t, touchstonetest.SimulateNode(), touchstonetest.Without("GET_CAPACITY"),
		touchstonetest.Flags("--max-volumes-per-node=7"))
	made := create(t, d, "kept")

	d.AddFault(`{name: refuse, match: {method: DeleteVolume}, act: {before: {code: INTERNAL, message: disk}}}`)
	d.Restart()

	remove := func() error {
		_, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: made.GetVolumeId()})

		return err
	}

	wantf(t, status.Code(remove()) == codes.Internal, "the rule outlives the restart")
	d.ClearFaults("refuse")
	must(0, remove())(t)

	_, err := d.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	wantf(t, status.Code(err) == codes.Unimplemented, "the capability is taken away: %v", err)
	wantf(t, must(d.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{}))(t).GetMaxVolumesPerNode() == 7, "the flag of before")
}

// TestARestartBringsNoRuleTwice: neither one that has ended, nor those of a file, which the start loads.
func TestARestartBringsNoRuleTwice(t *testing.T) {
	t.Parallel()

	file := filepath.Join(t.TempDir(), "faults.yaml")
	must(0, os.WriteFile(file, []byte("rules: [{match: {method: ListVolumes}, act: {before: {code: INTERNAL}}}]"), 0o600))(t)

	d := touchstonetest.Start(t, touchstonetest.SimulateNode(), touchstonetest.Flags("--faults="+file))
	d.AddFault(`{match: {method: CreateVolume}, until: {hits: 1}, act: {before: {code: INTERNAL}}}`)

	_, err := d.CreateVolume(t.Context(), request("made"))
	wantf(t, status.Code(err) == codes.Internal, "the rule holds once: %v", err)
	d.Restart()
	create(t, d, "made")

	_, err = d.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	wantf(t, status.Code(err) == codes.Internal, "the file's rule holds: %v", err)
}

// TestTheDriverCrashes by a rule, and is started again with its volumes and without the rule.
func TestTheDriverCrashes(t *testing.T) {
	t.Parallel()

	d := touchstonetest.Start(t, touchstonetest.SimulateNode())
	create(t, d, "kept")
	d.AddFault(`{match: {method: DeleteVolume}, act: {crash: true}}`)

	_, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "any"})
	wantf(t, status.Code(err) == codes.Unavailable, "the call ends with the driver: %v", err)
	d.Restart()
	wantf(t, len(must(d.ListVolumes(t.Context(), &csi.ListVolumesRequest{}))(t).GetEntries()) == 1, "the volume outlives the crash")
}

// publishUnstaged publishes a volume that was not staged.
func publishUnstaged(t *testing.T, d *touchstonetest.Driver, made *csi.Volume) {
	t.Helper()

	_, err := d.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: made.GetVolumeId(), StagingTargetPath: d.Dir + "/s", TargetPath: d.Dir + "/t",
		VolumeCapability: request("").GetVolumeCapabilities()[0], VolumeContext: made.GetVolumeContext(),
	})
	wantf(t, err != nil, "the violation is refused")
}

func TestViolationsAreFound(t *testing.T) {
	t.Parallel()

	d := touchstonetest.Start(t, touchstonetest.SimulateNode())
	publishUnstaged(t, d, create(t, d, "data"))

	found := d.Violations()
	wantf(t, len(found) > 0 && found[0].Name == "data", "the violation is found, and names the volume: %v", found)
	wantf(t, len(d.Violations(`.method | endswith("NodePublishVolume")`, `.count == 1`)) > 0, "both filters hold")
	wantf(t, len(d.Violations(`.count > 1`)) == 0, "the filter does not hold")
	wantf(t, len(d.Calls(touchstonetest.Filter{JQ: `.request.capacity_range.required_bytes == 64*1024*1024`})) == 1, "one call of that size")
}

// failing is a test that is expected to fail.
type failing struct {
	testing.TB

	cleanups []func()
	failures []string
}

func (f *failing) Errorf(format string, args ...any) {
	f.failures = append(f.failures, fmt.Sprintf(format, args...))
}
func (f *failing) Cleanup(cleanup func()) { f.cleanups = append(f.cleanups, cleanup) }

// end runs the cleanups, and returns the failures.
func (f *failing) end() string {
	for _, cleanup := range slices.Backward(f.cleanups) {
		cleanup()
	}

	return strings.Join(f.failures, "\n")
}

// TestFailuresNameTheVolumeAndTheLine of the test that made the call.
func TestFailuresNameTheVolumeAndTheLine(t *testing.T) {
	t.Parallel()

	judged := &failing{TB: t}
	d := touchstonetest.Start(judged, touchstonetest.SimulateNode(), touchstonetest.FailOnViolations(), touchstonetest.NoLeaks())
	made := create(t, d, "data")
	publishUnstaged(t, d, made)
	attach(t, d, made)
	must(d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "monday", SourceVolumeId: made.GetVolumeId()}))(t)

	kinds := map[string]bool{}
	for _, each := range d.Leaks() {
		kinds[each.Kind] = true
	}

	wantf(t, kinds["volume"] && kinds["snapshot"] && kinds["attachment"], "the volume, its snapshot and its attachment: %v", kinds)

	failures := judged.end()
	for _, text := range []string{
		"violation of the CSI spec at driver_test.go:", "publish-before-stage of data (" + made.GetVolumeId() + ")",
		"the volume of data (" + made.GetVolumeId() + "), made at driver_test.go:", "DeleteVolume is missing",
		"the attachment of data (" + made.GetVolumeId() + ") at test-node, made at driver_test.go:", "the snapshot of monday (",
	} {
		wantf(t, strings.Contains(failures, text), "%s in\n%s", text, failures)
	}
}

// TestHeldCall holds a call until it is released.
func TestHeldCall(t *testing.T) {
	t.Parallel()

	d := touchstonetest.Start(t, touchstonetest.SimulateNode(),
		touchstonetest.Faults(`{match: {method: CreateVolume}, act: {hold: door}}`))
	ended := make(chan error, 1)

	go func() {
		_, err := d.CreateVolume(t.Context(), request("held"))
		ended <- err
	}()

	for d.Release("door") == 0 { // want: the call waits at the door
		time.Sleep(time.Millisecond)
	}

	must(0, <-ended)(t)
}

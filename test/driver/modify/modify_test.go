package modify_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/queue"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// notLong is how long a test waits for what another process does in its own
// time; it is no verdict on speed.
const notLong = 20 * time.Second

// loopsOf are the loop devices of a volume: that of the staging, and the one of
// read-only publications of a raw block volume.
func loopsOf(t *testing.T, d *harness.Driver, id string) []loop.Attachment {
	t.Helper()

	all, err := loop.NewLoops(loop.LoopsOptions{}).Attachments()
	require.NoError(t, err)

	var found []loop.Attachment

	for _, each := range all {
		if strings.HasPrefix(each.BackingPath, harness.ImageOf(d, id)) {
			found = append(found, each)
		}
	}

	return found
}

func queueOf(t *testing.T, number int) queue.Attributes {
	t.Helper()

	queue, err := queue.New(queue.DefaultSysBlock).Get(fmt.Sprint("loop", number))
	require.NoError(t, err)

	return queue
}

// otherScheduler is one that a loop device does not have by itself.
func otherScheduler(t *testing.T) string {
	t.Helper()

	const name = "mq-deadline"
	if err := queue.New(queue.DefaultSysBlock).CheckScheduler(name); err != nil {
		t.Skip(err)
	}

	return name
}

// cleanQueue keeps a test that fails from being what the next one fails of.
func cleanQueue(t *testing.T, number int) {
	t.Helper()
	t.Cleanup(func() {
		err := queue.New(queue.DefaultSysBlock).Set(fmt.Sprint("loop", number), queue.Attributes{ReadAheadKiB: -1, Scheduler: "none"})
		require.NoError(t, err)
	})
}

func queueKinds() map[string]*csi.VolumeCapability {
	return map[string]*csi.VolumeCapability{
		"mount": csiclient.MountCapability(harness.MultiWriter, ""), "block": csiclient.BlockCapability(harness.MultiWriter),
	}
}

func TestQueueIsInForce(t *testing.T) {
	namespace.NeedRoot(t)

	scheduler := otherScheduler(t)

	for name, capability := range queueKinds() {
		t.Run(name, func(t *testing.T) {
			d := harness.Start(t)
			claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
				Name: harness.NameOf(t), VolumeCapabilities: []*csi.VolumeCapability{capability},
				MutableParameters: map[string]string{"readAheadKiB": "512", "ioScheduler": scheduler},
			})
			harness.BringUp(t, d, claim)

			number := loopsOf(t, d, claim.VolumeID)[0].Number
			cleanQueue(t, number)
			require.Equal(t, queue.Attributes{ReadAheadKiB: 512, Scheduler: scheduler}, queueOf(t, number))

			// What a request does not name stays as it is.
			require.NoError(t, harness.Modify(t.Context(), d, claim.VolumeID, map[string]string{"readAheadKiB": "0"}))
			require.Equal(t, queue.Attributes{ReadAheadKiB: 0, Scheduler: scheduler}, queueOf(t, number))

			reader := harness.AnotherTarget(claim, "reader")
			reader.ReadOnly = true
			require.NoError(t, d.Publish(t.Context(), reader))

			for _, each := range loopsOf(t, d, claim.VolumeID) {
				require.Equal(t, queue.Attributes{ReadAheadKiB: 0, Scheduler: scheduler}, queueOf(t, each.Number))
			}

			require.NoError(t, harness.Modify(t.Context(), d, claim.VolumeID, map[string]string{"readAheadKiB": "64"}))

			for _, each := range loopsOf(t, d, claim.VolumeID) {
				require.Equal(t, queue.Attributes{ReadAheadKiB: 64, Scheduler: scheduler}, queueOf(t, each.Number))
			}

			require.NoError(t, d.Unpublish(t.Context(), reader))

			// Not even a change by hand in the meantime survives a restart.
			err := queue.New(queue.DefaultSysBlock).Set(fmt.Sprint("loop", number), queue.Attributes{ReadAheadKiB: 1024, Scheduler: "none"})
			require.NoError(t, err)
			d.Restart(t)
			require.Equal(t, queue.Attributes{ReadAheadKiB: 64, Scheduler: scheduler}, queueOf(t, number))

			harness.TakeDown(t, d, claim)
			require.Equal(t, "none", queueOf(t, number).Scheduler, "the next volume at this number gets what it had")
			harness.BringUp(t, d, claim)
			require.Equal(t, queue.Attributes{ReadAheadKiB: 64, Scheduler: scheduler}, queueOf(t, loopsOf(t, d, claim.VolumeID)[0].Number))
			harness.TakeDown(t, d, claim)
			harness.DeleteVolume(t, d, claim.VolumeID)
			require.Empty(t, harness.Tree(t, filepath.Join(d.Pool(), "attributes"))[filepath.Join(d.Pool(), "attributes", claim.VolumeID+".json")], "want: no attributes of the deleted volume are left")
		})
	}
}

// ownLoops are numbers that no other driver on the machine uses.
func ownLoops(c *driver.Config) { c.Node.Loops.First = 785_000 }

// TestTheNextVolumeInheritsNothing has a staging unmounted behind the driver's
// back, so that it does not see the device go.
func TestTheNextVolumeInheritsNothing(t *testing.T) {
	namespace.NeedRoot(t)

	scheduler := otherScheduler(t)
	d := harness.Start(t, ownLoops)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{MutableParameters: map[string]string{"ioScheduler": scheduler}})
	harness.AttachAndStage(t, d, claim)

	number := loopsOf(t, d, claim.VolumeID)[0].Number
	cleanQueue(t, number)
	harness.Unmount(t, claim.StagingPath)
	require.Eventually(t, func() bool { return len(loopsOf(t, d, claim.VolumeID)) == 0 }, notLong, time.Millisecond, "want: the unmounted volume has no device")
	require.Equal(t, scheduler, queueOf(t, number).Scheduler)

	require.NoError(t, d.Unstage(t.Context(), claim))
	require.Equal(t, "none", queueOf(t, number).Scheduler)
}

// TestRestartRestoresTheScheduler in the same way where no image takes the number.
func TestRestartRestoresTheScheduler(t *testing.T) {
	namespace.NeedRoot(t)

	scheduler := otherScheduler(t)
	d := harness.Start(t, ownLoops)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{MutableParameters: map[string]string{"ioScheduler": scheduler}})
	harness.AttachAndStage(t, d, claim)

	number := loopsOf(t, d, claim.VolumeID)[0].Number
	cleanQueue(t, number)
	d.Stop()
	harness.Unmount(t, claim.StagingPath)
	require.Eventually(t, func() bool { return len(loopsOf(t, d, claim.VolumeID)) == 0 }, notLong, time.Millisecond, "want: the unmounted volume has no device")
	require.Equal(t, scheduler, queueOf(t, number).Scheduler)
	d.Restart(t)
	require.Equal(t, "none", queueOf(t, number).Scheduler)
}

// refusal is a request that no volume of its kind can have.
type refusal struct {
	name       string
	parameters map[string]string
	mutable    map[string]string
	words      []string
}

func refusals() []refusal {
	return []refusal{
		{"unknown", nil, map[string]string{"readIOPS": "100", "XXX_FakeKey": "1"}, []string{"XXX_FakeKey", "writeBytesPerSecond"}},
		{"not a number", nil, map[string]string{"readAheadKiB": "512", "readIOPS": "many"}, []string{"readIOPS", "many"}},
		{"negative", nil, map[string]string{"readAheadKiB": "512", "writeIOPS": "-1"}, []string{"writeIOPS"}},
		{"no period", nil, map[string]string{"checkPeriod": "often"}, []string{"checkPeriod", "often"}},
		{"no such scheduler", nil, map[string]string{"readAheadKiB": "512", "ioScheduler": "elevator"}, []string{"ioScheduler", "elevator", "none"}},
		{"limits without a controller", nil, map[string]string{"readAheadKiB": "512", "readIOPS": "1"}, []string{"limits", "blkio"}},
		{"limits of a directory", harness.DirectoryBacked(), map[string]string{"checkPeriod": "1h", "readIOPS": "1"}, []string{"readIOPS", "directory"}},
		{"queue of a directory", harness.DirectoryBacked(), map[string]string{"readAheadKiB": "4"}, []string{"readAheadKiB", "directory"}},
	}
}

// withoutBlkio is a machine whose kernel can't limit block devices.
func withoutBlkio(t *testing.T) harness.Option {
	t.Helper()

	root := t.TempDir()

	return func(c *driver.Config) { c.Node.CgroupRoot = root }
}

func TestImpossibleMutableParametersAreRefused(t *testing.T) {
	namespace.NeedRoot(t)

	for _, row := range refusals() {
		t.Run(row.name, func(t *testing.T) {
			d := harness.Start(t, withoutBlkio(t))
			before := harness.Everything(t, d)

			_, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
				Name: "refused", Parameters: row.parameters, MutableParameters: row.mutable,
				VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "")},
			})
			harness.RequireCode(t, err, codes.InvalidArgument, row.words...)
			require.Equal(t, before, harness.Everything(t, d))

			claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
				Name: "made", Parameters: row.parameters, MutableParameters: map[string]string{"checkPeriod": "2h"},
			})
			harness.BringUp(t, d, claim)

			queues := map[int]queue.Attributes{}
			for _, each := range loopsOf(t, d, claim.VolumeID) {
				queues[each.Number] = queueOf(t, each.Number)
			}

			before = harness.Everything(t, d)

			harness.RequireCode(t, harness.Modify(t.Context(), d, claim.VolumeID, row.mutable), codes.InvalidArgument, row.words...)
			require.Equal(t, before, harness.Everything(t, d))
			conformance.Shows(t, "ControllerModifyVolume", "mutable_parameters unsupported", "nothing is modified")

			for number, queue := range queues {
				require.Equal(t, queue, queueOf(t, number))
			}
		})
	}
}

func TestModifyChecksItsRequest(t *testing.T) {
	d := harness.Start(t)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Parameters: harness.DirectoryBacked()})
	some := map[string]string{"checkPeriod": "1h"}

	harness.RequireCode(t, harness.Modify(t.Context(), d, "", some), codes.InvalidArgument, "volume_id")
	harness.RequireCode(t, harness.Modify(t.Context(), d, "../../etc", some), codes.InvalidArgument, "volume_id")
	harness.RequireCode(t, harness.Modify(t.Context(), d, "unknown", some), codes.NotFound, "unknown")
	harness.RequireCode(t, harness.Modify(t.Context(), d, claim.VolumeID, nil), codes.InvalidArgument, "mutable_parameters")
	require.NoError(t, harness.Modify(t.Context(), d, claim.VolumeID, some))
	harness.DeleteVolume(t, d, claim.VolumeID)
	harness.RequireCode(t, harness.Modify(t.Context(), d, claim.VolumeID, some), codes.NotFound, claim.VolumeID)
}

// TestCreateComparesMutableParameters: a volume is what is asked for only if its parameters are now
// what is asked for.
func TestCreateComparesMutableParameters(t *testing.T) {
	d := harness.Start(t)
	request := func(mutable map[string]string) *csi.CreateVolumeRequest {
		return &csi.CreateVolumeRequest{
			Name: "again", VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "")}, MutableParameters: mutable,
		}
	}

	made, err := d.CreateVolume(t.Context(), request(map[string]string{"readAheadKiB": "64", "checkPeriod": "60m"}))
	require.NoError(t, err)

	id := made.GetVolume().GetVolumeId()
	for _, same := range []map[string]string{
		{"readAheadKiB": "64", "checkPeriod": "60m"}, {"checkPeriod": "1h", "readAheadKiB": "0064"}, {"readAheadKiB": "64"}, nil,
	} {
		found, err := d.CreateVolume(t.Context(), request(same))
		require.NoError(t, err)
		require.Equal(t, id, found.GetVolume().GetVolumeId())
	}

	for _, other := range []map[string]string{{"readAheadKiB": "128"}, {"readAheadKiB": "64", "ioScheduler": "none"}} {
		_, err := d.CreateVolume(t.Context(), request(other))
		harness.RequireCode(t, err, codes.AlreadyExists, "mutable parameters")
	}

	require.NoError(t, harness.Modify(t.Context(), d, id, map[string]string{"readAheadKiB": "128"}))

	require.NoError(t, harness.Modify(t.Context(), d, id, map[string]string{"readAheadKiB": "128"}), "again")

	_, err = d.CreateVolume(t.Context(), request(map[string]string{"readAheadKiB": "128", "checkPeriod": "1h"}))
	require.NoError(t, err)
	conformance.Shows(t, "ControllerModifyVolume", "a key absent", "its value is as before")

	validate := func(mutable map[string]string) *csi.ValidateVolumeCapabilitiesResponse {
		answer, err := d.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{
			VolumeId: id, VolumeCapabilities: request(nil).GetVolumeCapabilities(), MutableParameters: mutable,
		})
		require.NoError(t, err)

		return answer
	}

	confirmed := map[string]string{"readAheadKiB": "128"}
	require.Equal(t, confirmed, validate(confirmed).GetConfirmed().GetMutableParameters())
	require.Nil(t, validate(map[string]string{"readAheadKiB": "64"}).GetConfirmed(), "want: another value is not confirmed")
	require.Nil(t, validate(map[string]string{"nothing": "64"}).GetConfirmed(), "want: an unknown parameter is not confirmed")
}

// TestPoolAttributesFollowTheRecords: a crash can come between the two.
func TestPoolAttributesFollowTheRecords(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{MutableParameters: map[string]string{"readAheadKiB": "64"}})
	harness.BringUp(t, d, claim)

	number := loopsOf(t, d, claim.VolumeID)[0].Number
	file := filepath.Join(d.Pool(), "attributes", claim.VolumeID+".json")
	content, err := os.ReadFile(file)
	require.NoError(t, err)

	orphan := filepath.Join(d.Pool(), "attributes", "01890000-0000-7000-8000-000000000000.json")

	for _, left := range []string{"", `{"readAheadKiB": "128"}`, "{"} {
		d.Stop()
		harness.WriteFile(t, orphan, `{"readAheadKiB": "128"}`)

		if left == "" {
			require.NoError(t, os.Remove(file))
		} else {
			harness.WriteFile(t, file, left)
		}

		err := queue.New(queue.DefaultSysBlock).Set(fmt.Sprint("loop", number), queue.Attributes{ReadAheadKiB: 4})
		require.NoError(t, err)
		d.Restart(t)
		harness.RequireFile(t, file, string(content))
		require.Equal(t, int64(64), queueOf(t, number).ReadAheadKiB, "want: the device has the read-ahead of the volume")
		require.NoFileExists(t, orphan)
	}
}

// TestNodesApplyModifications: controller and node are processes of their own, and share only the
// pool.
func TestNodesApplyModifications(t *testing.T) {
	namespace.NeedRoot(t)

	controller := harness.Start(t, func(c *driver.Config) { c.Mode = driver.ModeController })
	node := harness.Start(t, func(c *driver.Config) { c.Mode, c.Pools = driver.ModeNode, controller.Config.Pools })

	claim := harness.NewVolume(t, controller, &csi.CreateVolumeRequest{MutableParameters: map[string]string{"readAheadKiB": "64"}})
	claim = moved(t, node, claim)

	require.NoError(t, controller.Attach(t.Context(), claim))
	require.NoError(t, node.Stage(t.Context(), claim))
	t.Cleanup(func() {
		require.NoError(t, node.Unpublish(context.WithoutCancel(t.Context()), claim))
		require.NoError(t, node.Unstage(context.WithoutCancel(t.Context()), claim))
	})
	require.NoError(t, node.Publish(t.Context(), claim))

	number := loopsOf(t, controller, claim.VolumeID)[0].Number
	require.Equal(t, int64(64), queueOf(t, number).ReadAheadKiB, "want: the device has the read-ahead of the volume")

	becomes := func(kib int64) {
		require.Eventually(t, func() bool { return queueOf(t, number).ReadAheadKiB == kib }, notLong, time.Millisecond, "want: the node applies the changed read-ahead")
	}

	for _, kib := range []int64{128, 256, 512} {
		require.NoError(t, harness.Modify(t.Context(), controller, claim.VolumeID, map[string]string{"readAheadKiB": strconv.FormatInt(kib, 10)}))
		becomes(kib)
	}

	// One that comes while the node is away is found when it is back.
	node.Stop()
	require.NoError(t, harness.Modify(t.Context(), controller, claim.VolumeID, map[string]string{"readAheadKiB": "1024"}))
	node.Restart(t)
	becomes(1024)
}

// moved is the claim at the paths of another node.
func moved(t *testing.T, to *harness.Driver, claim *csiclient.Publication) *csiclient.Publication {
	t.Helper()

	there := to.Claim(t, claim.VolumeID)
	there.VolumeContext, there.Capability = claim.VolumeContext, claim.Capability

	return there
}

func TestModifyNeedsTheCapability(t *testing.T) {
	d := harness.Start(t, func(c *driver.Config) { c.Disabled = []string{"MODIFY_VOLUME"} })
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{})
	some := map[string]string{"checkPeriod": "1h"}

	_, err := d.Capabilities(t.Context())
	require.NoError(t, err)
	harness.RequireCode(t, harness.Modify(t.Context(), d, claim.VolumeID, some), codes.Unimplemented)

	_, err = d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "other", VolumeCapabilities: []*csi.VolumeCapability{claim.Capability}, MutableParameters: some,
	})
	harness.RequireCode(t, err, codes.InvalidArgument, "MODIFY_VOLUME")
}

// record is the volume's newest one in the journal, and how many transactions of it
// there were.
func record(t *testing.T, d *harness.Driver, id string) (parameters map[string]string, transactions int) {
	t.Helper()

	for _, line := range journal(t, d) {
		// What the node has noted lazily gets to the disk at any time.
		about := false

		for _, change := range line.Changes {
			if change.Collection == "volumes" && change.Key == id {
				parameters, about = change.Record.Mutable, true
			}
		}

		if about {
			transactions++
		}
	}

	return maps.Clone(parameters), transactions
}

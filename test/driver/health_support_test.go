package driver_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

const (
	// often is the time between two relists that a test waits for.
	often = 50 * time.Millisecond
	// never is the time between two relists where a test wants none.
	never = time.Hour
)

// eventsOnly leaves relists out: each observation comes from an event.
func eventsOnly(c *driver.Config) { c.HealthRelistPeriod, c.HealthEventedRelistPeriod = never, never }

// relists has both: what has no event is found by the next relist.
func relists(c *driver.Config) { c.HealthRelistPeriod, c.HealthEventedRelistPeriod = often, often }

// pollingOnly leaves events out, as --health-events=false does.
func pollingOnly(c *driver.Config) { c.HealthPolling, c.HealthRelistPeriod = true, often }

// sufferer is a volume in use that becomes unhealthy and healthy again.
type sufferer struct {
	*harness.Driver

	claim *csiclient.Publication
	image string
	// served is where the pool is, nil for a pool that does not fail.
	served *faults.Directory
	// kept is what strike leaves for cure.
	kept string
	// recur is what strike leaves for an illness that recurs.
	recur func() error
}

// illness is one way to become unhealthy, and healthy again.
type illness struct {
	name string
	// volume is what is asked for; nil is an ext4.
	volume *csi.CreateVolumeRequest
	// served has the pool in a directory whose files can be made to fail.
	served  bool
	options []harness.Option
	// evented says that it is known without a relist.
	evented bool
	// unpolled says that it can't be known without an event.
	unpolled bool
	// recurs says that it goes on until it is known, since it passes by itself.
	recurs bool

	strike func(t *testing.T, p *sufferer)
	// cure may be nil for what passes by itself.
	cure func(t *testing.T, p *sufferer)

	// node and controller are what each of the two views must report, and beside is what
	// may be reported together with that.
	node, controller, beside []health.Reason
	// polledNode is node where events are needed for a part of it.
	polledNode []health.Reason
}

// run has the illness come and go in each way in which it can be known.
func (i *illness) run(t *testing.T) {
	t.Helper()

	ways := map[string]harness.Option{"polling": pollingOnly, "relist": relists}
	if i.evented {
		ways = map[string]harness.Option{"polling": pollingOnly, "events": eventsOnly}
	}

	if i.unpolled {
		delete(ways, "polling")
	}

	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			p := i.admit(t, way)
			p.awaitWell(t)

			i.strike(t, p)

			pass := func() {}
			if i.recurs {
				pass = p.recurring(t)
			}

			want := i.diagnosis()
			if name == "polling" && i.polledNode != nil {
				want.node = i.polledNode
			}

			p.await(t, want)
			pass()

			if i.cure != nil {
				i.cure(t, p)
			}

			p.awaitWell(t)
		})
	}
}

// recurring has what struck happen again and again, until pass is called or the
// test ends.
func (p *sufferer) recurring(t *testing.T) (pass func()) {
	t.Helper()

	passed, ended := make(chan struct{}), make(chan struct{})
	pass = sync.OnceFunc(func() {
		close(passed)
		await.Receive(t, ended, "the recurring faults to end")
	})
	t.Cleanup(pass)

	go func() {
		defer close(ended)

		for {
			select {
			case <-passed:
				return
			case <-time.After(often):
				_ = p.recur()
			}
		}
	}()

	return pass
}

func (i *illness) diagnosis() diagnosis {
	return diagnosis{node: i.node, controller: i.controller, beside: i.beside}
}

// admit brings up a volume of a driver of its own.
func (i *illness) admit(t *testing.T, way harness.Option) *sufferer {
	t.Helper()

	p := &sufferer{}
	options := append([]harness.Option{way}, i.options...)

	if i.served {
		p.served = faults.Serve(t)
		options = append(options, poolAt("default", filepath.Join(p.served.Path, "pool")))
	}

	p.Driver = harness.Start(t, options...)
	p.claim = newVolume(t, p.Driver, i.request())
	p.image = imageOf(p.Driver, p.claim.VolumeID)
	bringUp(t, p.Driver, p.claim)
	p.awaitLook(t)

	return p
}

// awaitLook waits until all sources are connected and the node has probed
// the volume, since when nothing that happens to it is missed.
func (p *sufferer) awaitLook(t *testing.T) {
	t.Helper()

	require.EventuallyWithT(t, func(c *assert.CollectT) {
		report, err := health.NewClient(p.Conn()).Report(t.Context())
		require.NoError(c, err)

		for view, sources := range report.Sources {
			for _, source := range sources {
				require.True(c, source.Connected, "%s: %+v", view, source)
			}
		}

		at := slices.IndexFunc(report.Volumes, func(v health.VolumeReport) bool { return v.ID == p.claim.VolumeID })
		require.NotEqual(c, -1, at)

		volume := report.Volumes[at]
		require.NotEmpty(c, volume.Published)

		// A probe of a directory shows nothing.
		require.True(c, volume.Usage != nil || volume.Backing == "directory")
	}, soon, 10*time.Millisecond)
}

func (i *illness) request() *csi.CreateVolumeRequest {
	if i.volume == nil {
		return &csi.CreateVolumeRequest{}
	}

	// Two ways at a time fill in what it lacks.
	request, _ := proto.Clone(i.volume).(*csi.CreateVolumeRequest)

	return request
}

// contract has all of the illnesses come and go.
func contract(t *testing.T, illnesses []illness) {
	t.Helper()
	namespace.NeedRoot(t)
	t.Parallel()

	for _, each := range illnesses {
		t.Run(each.name, func(t *testing.T) {
			t.Parallel()
			each.run(t)
		})
	}
}

func poolAt(name, directory string) harness.Option {
	return func(c *driver.Config) { c.Pools[name] = directory }
}

// formatted asks for a volume with the filesystem, mounted with the flags.
func formatted(fsType string, flags ...string) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(writer, fsType, flags...)},
		CapacityRange:      &csi.CapacityRange{RequiredBytes: sizeFor(fsType)},
	}
}

func rawBlock() *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)}}
}

// restage takes the volume down and brings it up again.
func restage(t *testing.T, p *sufferer) {
	t.Helper()
	takeDown(t, p.Driver, p.claim)
	require.NoError(t, p.Attach(t.Context(), p.claim))
	require.NoError(t, p.Stage(t.Context(), p.claim))
	require.NoError(t, p.Publish(t.Context(), p.claim))
}

// check checks the volume's filesystem, as `touchstone check` does.
func check(t *testing.T, p *sufferer, how string) *health.VolumeCheck {
	t.Helper()

	found, err := health.NewClient(p.Conn()).Check(t.Context(), health.CheckRequest{VolumeID: p.claim.VolumeID, How: how})
	require.NoError(t, err)

	return found
}

// aside is where a test puts what it takes from the pool, under its old name.
func (p *sufferer) aside(t *testing.T, taken string) string {
	t.Helper()

	directory := filepath.Join(filepath.Dir(p.Pool()), "aside")
	require.NoError(t, os.MkdirAll(directory, 0o700))

	return filepath.Join(directory, filepath.Base(taken))
}

// device is the loop device of the volume.
func (p *sufferer) device(t *testing.T) string {
	t.Helper()

	attached := devicesOf(t, p.Driver, p.claim.VolumeID)
	require.Len(t, attached, 1)

	return attached[0].Path
}

// fail has the volume's image fail, and nothing beside it.
func (p *sufferer) fail(t *testing.T, fault faults.Fault) {
	t.Helper()

	name, err := filepath.Rel(p.served.Path, p.image)
	require.NoError(t, err)

	fault.Name = name
	p.served.Inject(t, fault)
}

// storage waits until the node reports exactly these reasons for its pools and its
// state, as "<status> <reason>", whose message names what it is about.
func storage(t *testing.T, d *harness.Driver, named string, reasons ...health.Reason) {
	t.Helper()

	require.EventuallyWithT(t, func(c *assert.CollectT) {
		answer, err := d.NodeGetStorageHealth(t.Context(), &csi.NodeGetStorageHealthRequest{})
		require.NoError(c, err)

		var found, wanted []string

		for _, each := range answer.GetBackendHealth() {
			found = append(found, each.GetStatus().String()+" "+each.GetReason())
			require.Contains(c, each.GetMessage(), named)
		}

		for _, reason := range reasons {
			wanted = append(wanted, reason.Status().String()+" "+string(reason))
		}

		require.ElementsMatch(c, wanted, found, "%v", answer)
	}, soon, 10*time.Millisecond)
}

// tool runs a tool and returns what it says.
func tool(t *testing.T, allowed int, name string, arguments ...string) string {
	t.Helper()

	command := child.Command(t, name, arguments...)
	output, _ := command.CombinedOutput()
	require.LessOrEqual(t, command.ProcessState.ExitCode(), allowed, "%s %s: %s", name, strings.Join(arguments, " "), output)
	require.GreaterOrEqual(t, command.ProcessState.ExitCode(), 0)

	return string(output)
}

// copyFile copies a file with its holes.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	tool(t, 0, "cp", "--sparse=always", from, to)
}

// writeAt overwrites a part of a file.
func writeAt(t require.TestingT, path string, offset int64, data []byte) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)

	defer file.Close()

	_, err = file.WriteAt(data, offset)
	require.NoError(t, err)
}

package health_test

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// sufferer is a volume in use that becomes unhealthy and healthy again.
type sufferer struct {
	*harness.Driver

	claim *csiclient.Publication
	image string
	// controller is set where the volume's may be another process.
	controller *harness.Driver
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

	ways := map[string]harness.Option{"polling": harness.PollingOnly, "relist": harness.Relists}
	if i.evented {
		ways = map[string]harness.Option{"polling": harness.PollingOnly, "events": harness.EventsOnly}
	}

	if i.unpolled {
		delete(ways, "polling")
	}

	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			p := i.admit(t, way)
			p.awaitWell(t)

			if name == "events" {
				awaitQuiet()
			}

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
			case <-time.After(harness.Often):
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
		options = append(options, harness.PoolAt("default", filepath.Join(p.served.Path, "pool")))
	}

	p.Driver = harness.Start(t, options...)
	p.claim = harness.NewVolume(t, p.Driver, i.request())
	p.image = harness.ImageOf(p.Driver, p.claim.VolumeID)
	harness.BringUp(t, p.Driver, p.claim)
	p.awaitLook(t)

	return p
}

// awaitQuiet waits until the probes that follow an event are over: the last one starts a second
// after the event. Nothing reports that.
func awaitQuiet() { time.Sleep(1500 * time.Millisecond) }

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
		require.NotEqual(c, -1, at, "want: the report has the volume")

		volume := report.Volumes[at]
		require.NotEmpty(c, volume.Published, "want: the report has where the volume is published")

		// A probe of a directory shows nothing.
		require.True(c, volume.Usage != nil || volume.Backing == "directory", "want: an image has its usage")
	}, await.Limit, 10*time.Millisecond, "want: all views have probed the volume")
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

func rawBlock() *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)}}
}

// restage takes the volume down and brings it up again.
func restage(t *testing.T, p *sufferer) {
	t.Helper()
	harness.TakeDown(t, p.Driver, p.claim)
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

	attached := harness.DevicesOf(t, p.Driver, p.claim.VolumeID)
	require.Len(t, attached, 1, "want: the volume has one device")

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

// copyFile copies a file with its holes.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	harness.RunTool(t, 0, "cp", "--sparse=always", from, to)
}

// writeAt overwrites a part of a file.
func writeAt(t require.TestingT, path string, offset int64, data []byte) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)

	defer file.Close()

	_, err = file.WriteAt(data, offset)
	require.NoError(t, err)
}

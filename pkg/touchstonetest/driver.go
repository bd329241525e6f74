package touchstonetest

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/lab/calls"
	"github.com/touchstone-csi/touchstone/internal/lab/faults"
	"github.com/touchstone-csi/touchstone/internal/lab/jq"
	"github.com/touchstone-csi/touchstone/internal/lab/strict"
)

const (
	// NodeID is the driver's node id, unless Configure changes it.
	NodeID = "test-node"
	// limit ends a test that would hang; it is no verdict on speed.
	limit = time.Minute
)

// Option changes the driver before it starts.
type Option func(*options)

type options struct {
	config           driver.Config
	rules            []string
	failOnViolations bool
}

// Faults adds fault rules, each a YAML document as docs/faults.md describes it.
func Faults(rules ...string) Option {
	return func(o *options) { o.rules = append(o.rules, rules...) }
}

// Without takes capabilities away, by their names in the spec, such as "EXPAND_VOLUME", or
// "node:EXPAND_VOLUME" for one service only.
func Without(capabilities ...string) Option {
	return func(o *options) { o.config.Disabled = append(o.config.Disabled, capabilities...) }
}

// Capacity sets how many bytes the pool may provision, whatever space the disk has.
func Capacity(bytes int64) Option {
	return func(o *options) { o.config.Capacities = map[string]int64{"default": bytes} }
}

// SimulateNode has node calls recorded and nothing mounted, also for root.
func SimulateNode() Option { return func(o *options) { o.config.SimulateNode = true } }

// FailOnViolations fails the test at its end for each violation of the spec by the CO.
func FailOnViolations() Option { return func(o *options) { o.failOnViolations = true } }

// Configure changes any other setting of the driver.
func Configure(change func(*Config)) Option { return func(o *options) { change(&o.config) } }

// Driver is a running driver, with clients of its services.
type Driver struct {
	csi.IdentityClient
	csi.ControllerClient
	csi.GroupControllerClient
	csi.SnapshotMetadataClient
	csi.NodeClient

	// Endpoint is the URL of the driver's socket, for CO code that connects by itself.
	Endpoint string
	// Dir is where the paths of node calls must lie when volumes are really mounted.
	Dir string

	tb      testing.TB
	options options
	conn    *grpc.ClientConn
	stop    func()
}

// Start runs a driver until the test ends.
func Start(tb testing.TB, given ...Option) *Driver {
	tb.Helper()

	// Not tb.TempDir alone, whose path may be longer than that of a socket.
	root, err := os.MkdirTemp("", "touchstonetest-") //nolint:usetesting // see above
	check(tb, err)
	tb.Cleanup(func() { check(tb, os.RemoveAll(root)) })

	root, err = filepath.EvalSymlinks(root)
	check(tb, err)

	o := options{config: driver.Defaults()}
	c := &o.config
	c.Controller.CoalesceWindow = 0 // no change waits for others
	c.Version, c.NodeID, c.Endpoint = "test", NodeID, "unix://"+filepath.Join(root, "csi.sock")
	c.StateDir, c.Pools = filepath.Join(root, "state"), map[string]string{"default": filepath.Join(root, "pool")}
	c.KubeletDir, c.Node.Direct.Root = filepath.Join(root, "kubelet"), filepath.Join(root, "direct-volumes")
	c.SimulateNode, c.EnableFaults, c.CallLog, c.Strict = os.Geteuid() != 0, true, driver.CallLogRing, strict.Observe
	c.Crash = func() {
		tb.Error("a fault rule has crash, which would end the process of the test: run the binary for it")
	}
	c.Log = slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))

	for _, option := range given {
		option(&o)
	}

	check(tb, os.MkdirAll(o.config.KubeletDir, 0o750))

	d := &Driver{tb: tb, options: o, Endpoint: o.config.Endpoint, Dir: o.config.KubeletDir}
	d.run()

	for _, rules := range o.rules {
		d.AddFault(rules)
	}

	tb.Cleanup(func() {
		if o.failOnViolations {
			d.requireNoViolation()
		}

		d.stop()
	})

	return d
}

// run starts the driver and connects to it.
func (d *Driver) run() {
	d.tb.Helper()

	ctx, cancel := context.WithCancel(context.Background())
	built, err := driver.New(ctx, d.options.config)
	check(d.tb, err)

	ended := make(chan error, 1)

	go func() { ended <- built.Run(ctx) }()

	d.conn, err = grpc.NewClient(d.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	check(d.tb, err)

	d.IdentityClient, d.ControllerClient = csi.NewIdentityClient(d.conn), csi.NewControllerClient(d.conn)
	d.GroupControllerClient, d.SnapshotMetadataClient = csi.NewGroupControllerClient(d.conn), csi.NewSnapshotMetadataClient(d.conn)
	d.NodeClient = csi.NewNodeClient(d.conn)
	d.stop = func() {
		check(d.tb, d.conn.Close())
		cancel()
		check(d.tb, <-ended)
	}

	// The gate answers as soon as the driver listens, and this call as soon as it is ready.
	ready, done := context.WithTimeout(context.Background(), limit)
	defer done()

	_, err = d.NodeGetInfo(ready, &csi.NodeGetInfoRequest{})
	check(d.tb, err)
}

// Restart ends the driver as SIGTERM does, and starts it with the same state and the rules that were
// active. Clients of before are closed; d has new ones.
func (d *Driver) Restart() {
	d.tb.Helper()

	listed := ask(d, d.faults().List)

	d.stop()
	d.run()

	for _, each := range listed.Rules {
		d.AddFault(each.Rule)
	}
}

// Conn returns the connection of the clients.
func (d *Driver) Conn() *grpc.ClientConn { return d.conn }

// AddFault adds fault rules (docs/faults.md) and returns their names.
func (d *Driver) AddFault(rules string) []string {
	d.tb.Helper()

	return ask(d, func(ctx context.Context) ([]string, error) { return d.faults().Add(ctx, rules) })
}

// ClearFaults clears the rules of these names, or all.
func (d *Driver) ClearFaults(names ...string) {
	d.tb.Helper()

	if len(names) == 0 {
		names = []string{""}
	}

	for _, name := range names {
		ask(d, func(ctx context.Context) ([]string, error) { return d.faults().Clear(ctx, name) })
	}
}

// Release releases the calls that a rule holds, and returns how many.
func (d *Driver) Release(hold string) int {
	d.tb.Helper()

	return ask(d, func(ctx context.Context) (int, error) { return d.faults().Release(ctx, hold) })
}

// Hits returns what the rules have done, the oldest first.
func (d *Driver) Hits() []Hit {
	d.tb.Helper()

	return ask(d, d.faults().Log)
}

func (d *Driver) faults() faults.Client { return faults.Client{Connection: d.conn} }

// Calls returns the recorded calls that the filter selects, in the order in which they ended.
func (d *Driver) Calls(filter Filter) []*Call {
	d.tb.Helper()

	return ask(d, func(ctx context.Context) ([]*Call, error) { return calls.NewClient(d.conn).List(ctx, filter) })
}

// AwaitCalls waits until that many calls of the RPC, a glob such as "Node*Volume", have ended since
// the start, and returns them.
func (d *Driver) AwaitCalls(rpc string, count int) []*Call {
	d.tb.Helper()

	result := ask(d, func(ctx context.Context) (*calls.WaitResult, error) {
		return calls.NewClient(d.conn).Wait(ctx, calls.WaitRequest{Filter: Filter{Method: rpc}, Count: count})
	})
	if !result.Reached {
		d.tb.Fatalf("%d of %d calls of %s", len(result.Calls), count, rpc)
	}

	return result.Calls
}

// Violations returns the violations of the spec by the CO, of which each jq filter makes something other than
// false and null.
func (d *Driver) Violations(filters ...string) []Violation {
	d.tb.Helper()

	found := ask(d, func(ctx context.Context) ([]Violation, error) { return strict.List(ctx, d.conn) })

	for _, filter := range filters {
		program, err := jq.Parse(filter)
		check(d.tb, err)

		found = slices.DeleteFunc(found, func(v Violation) bool {
			input, err := jq.FromJSON(v)
			check(d.tb, err)

			holds, err := program.Holds(context.Background(), input)
			check(d.tb, err)

			return !holds
		})
	}

	return found
}

func (d *Driver) requireNoViolation() {
	d.tb.Helper()

	for _, each := range d.Violations() {
		d.tb.Errorf("violation of the CSI spec: %s of %s, %d times: %s; %s (%v)",
			each.ID, each.Object, each.Count, each.Detail, each.Remedy, each.Rows)
	}
}

// ask calls one of Touchstone's own services.
func ask[T any](d *Driver, call func(context.Context) (T, error)) T {
	d.tb.Helper()

	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()

	answer, err := call(ctx)
	check(d.tb, err)

	return answer
}

func check(tb testing.TB, err error) {
	tb.Helper()

	if err != nil {
		tb.Fatal(err)
	}
}

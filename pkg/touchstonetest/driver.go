package touchstonetest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
)

const (
	// NodeID is the driver's node id, unless Flags changes it.
	NodeID = "test-node"
	// limit ends a test that would hang; it is no verdict on speed.
	limit = time.Minute
)

// Option changes the driver before it starts.
type Option func(*options)

type options struct {
	flags, rules              []string
	failOnViolations, noLeaks bool
}

// Faults adds fault rules, each a YAML document as docs/faults.md describes it.
func Faults(rules ...string) Option {
	return func(o *options) { o.rules = append(o.rules, rules...) }
}

// Without takes capabilities away, by their names in the spec, such as "EXPAND_VOLUME", or
// "node:EXPAND_VOLUME" for one service only.
func Without(capabilities ...string) Option {
	return func(o *options) {
		for _, each := range capabilities {
			o.flags = append(o.flags, "--disable-capability="+each)
		}
	}
}

// Capacity sets how many bytes the pool may provision, whatever space the disk has.
func Capacity(bytes int64) Option { return Flags("--capacity=default=" + strconv.FormatInt(bytes, 10)) }

// SimulateNode has node calls recorded and nothing mounted, also for root.
func SimulateNode() Option { return Flags("--simulate-node") }

// FailOnViolations fails the test at its end for each violation of the spec by the CO.
func FailOnViolations() Option { return func(o *options) { o.failOnViolations = true } }

// NoLeaks fails the test at its end for each volume, snapshot and attachment that the CO leaves behind, and of a
// driver that mounts for each staging and publication.
func NoLeaks() Option { return func(o *options) { o.noLeaks = true } }

// Flags sets any other flags of the driver, such as "--max-volumes-per-node=7" (docs/flags.md). The last one wins.
func Flags(flags ...string) Option {
	return func(o *options) { o.flags = append(o.flags, flags...) }
}

// Driver is a running driver, with clients of its services. A call by them, or by Conn, has the line of the test
// that makes it, which is named by a violation or leak.
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
	process *process
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

	d := &Driver{tb: tb, Endpoint: "unix://" + filepath.Join(root, "csi.sock"), Dir: filepath.Join(root, "kubelet")}
	d.options.flags = []string{
		"--endpoint=" + d.Endpoint, "--node-id=" + NodeID, "--state-dir=" + filepath.Join(root, "state"),
		"--pool=default=" + filepath.Join(root, "pool"), "--kubelet-dir=" + d.Dir,
		"--direct-volume-root=" + filepath.Join(root, "direct-volumes"), "--coalesce-window=0s", "--check-period=0s",
		"--enable-faults", "--call-log=ring", "--strict", "-v=0",
	}

	if os.Geteuid() != 0 {
		SimulateNode()(&d.options)
	}

	for _, option := range given {
		option(&d.options)
	}

	check(tb, os.MkdirAll(d.Dir, 0o750))
	d.run()
	tb.Cleanup(d.end)

	for _, rules := range d.options.rules {
		d.AddFault(rules)
	}

	return d
}

// run starts the driver and connects to it.
func (d *Driver) run() {
	d.tb.Helper()

	var err error

	d.process, err = startProcess(d.tb.Output(), d.options.flags)
	check(d.tb, err)

	d.conn, err = grpc.NewClient(d.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithUnaryInterceptor(sendCaller), grpc.WithStreamInterceptor(sendStreamCaller))
	check(d.tb, err)

	d.IdentityClient, d.ControllerClient = csi.NewIdentityClient(d.conn), csi.NewControllerClient(d.conn)
	d.GroupControllerClient, d.SnapshotMetadataClient = csi.NewGroupControllerClient(d.conn), csi.NewSnapshotMetadataClient(d.conn)
	d.NodeClient = csi.NewNodeClient(d.conn)

	ready, cancel := context.WithTimeout(d.process.alive, limit)
	defer cancel()

	// The gate answers as soon as the driver listens, and this call as soon as it is ready.
	if _, err = d.NodeGetInfo(ready, &csi.NodeGetInfoRequest{}); err != nil {
		d.tb.Fatalf("the driver does not start: %v", errors.Join(err, d.process.terminate()))
	}
}

// end judges the CO at the end of the test.
func (d *Driver) end() {
	d.tb.Helper()

	if !d.process.running() {
		d.tb.Fatalf("the driver has ended by itself: %v", d.process.failure)
	}

	d.requireNoViolation()
	d.requireNoLeak()
	d.stop()
}

func (d *Driver) stop() {
	d.tb.Helper()
	check(d.tb, d.conn.Close())
	check(d.tb, d.process.terminate())
}

// Restart ends the driver as SIGTERM does, and starts it with the same state and the rules of AddFault that
// have not ended, which begin again. A driver that has crashed by a rule is started without rules. Clients of before are closed; d
// has new ones.
func (d *Driver) Restart() {
	d.tb.Helper()

	var listed struct {
		Rules []struct {
			Rule, Source string
			Ended        bool
		}
	}

	if err := d.invoke("Faults/List", &emptypb.Empty{}, &listed); d.process.running() {
		check(d.tb, err)
		d.requireNoViolation() // of which the next process knows nothing
		d.stop()
	} else {
		check(d.tb, d.conn.Close())
	}

	d.run()

	for _, each := range listed.Rules {
		if each.Source == "added" && !each.Ended {
			d.AddFault(each.Rule)
		}
	}
}

// Conn returns the connection of the clients.
func (d *Driver) Conn() *grpc.ClientConn { return d.conn }

func check(tb testing.TB, err error) {
	tb.Helper()

	if err != nil {
		tb.Fatal(err)
	}
}

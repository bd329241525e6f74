package harness

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/internal/pool/removal"
	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/probe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/leftover"
)

// leftFile has what a driver in a process of its own has found at its end.
const leftFile = "left.json"

// Leaves declares that a test leaves something of these kinds on purpose, and why. All else that is
// left when it ends fails it.
func (d *Driver) Leaves(why string, kinds ...leftover.Kind) {
	if why == "" {
		panic("say why")
	}

	d.leaves = append(d.leaves, kinds...)
}

// observed is a driver of this process, whose memory is examined when it has ended.
type observed struct {
	*driver.Driver

	config   driver.Config
	root     string
	removals *removal.Queue
	metrics  *prometheus.Registry
	// prober and checks are nil without a node, records without a controller.
	prober  *probe.Prober
	checks  *staged.Records[*fsck.Result]
	records *catalog.Catalog
}

// observe returns a driver that does not run yet.
func observe(made *driver.Driver, root string, config driver.Config) *observed {
	return &observed{
		Driver: made, config: config, root: root,
		removals: leftover.Find[removal.Queue](made), metrics: leftover.Find[prometheus.Registry](made),
		prober: leftover.Find[probe.Prober](made), checks: leftover.Find[staged.Records[*fsck.Result]](made),
		records: leftover.Find[catalog.Catalog](made),
	}
}

// settle waits for removals in the background, and for what a relist does: it drops conditions that are
// over, and begins the removal of the records of checks of deleted volumes. The retry of a failed removal must
// succeed, unless its pool or the state is unavailable, or the test leaves something.
func (o *observed) settle(tb testing.TB, leaves []leftover.Kind) {
	tb.Helper()

	require.Eventually(tb, func() bool {
		failing := 0

		for name := range o.config.Pools {
			for _, each := range o.removals.Failures(name) {
				if len(leaves) > 0 || errors.Is(each.Cause, errdefs.ErrUnavailable) {
					failing++
				}
			}
		}

		return o.removals.Len() <= failing
	}, await.Limit, time.Millisecond, "removals in the background do not end")

	if o.prober == nil {
		return
	}

	ctx, cancel := context.WithTimeout(context.Background(), await.Limit)
	defer cancel()

	require.NoError(tb, o.prober.Monitor().Relist(ctx), "probe all volumes of the node")
	require.Eventually(tb, func() bool {
		objects, err := objectsOf(&o.config)

		return err != nil || !slices.ContainsFunc(o.checks.All(), func(each *fsck.Result) bool {
			return !objects[each.VolumeID] && !o.isRegistered(each.VolumeID)
		})
	}, await.Limit, time.Millisecond, "the records of checks of deleted volumes stay")
}

// isRegistered reports whether the controller has the volume, also without its image.
func (o *observed) isRegistered(id string) bool {
	if o.records == nil {
		return false
	}

	_, registered := o.records.Registered(id)

	return registered
}

// objectsOf returns the volumes and snapshots in the pools.
func objectsOf(config *driver.Config) (leftover.Objects, error) {
	objects := leftover.Objects{}

	var failures []error

	for _, directory := range config.Pools {
		found, err := leftover.InPool(objectsIn(directory))
		failures = append(failures, err)

		maps.Copy(objects, found)
	}

	return objects, errors.Join(failures...)
}

// left returns what has been left in the process by the driver, which has ended.
func (o *observed) left() ([]leftover.Finding, error) {
	read, err := leftover.ReadState(o.config.StateDir)
	if err != nil {
		return nil, err
	}

	objects := read.Named()

	for _, directory := range o.config.Pools {
		// Of a pool that has failed the records say what it has.
		inPool, _ := leftover.InPool(objectsIn(directory))
		removing, _ := leftover.Removing(objectsIn(directory))

		maps.Copy(objects, inPool)
		maps.Copy(objects, removing)
	}

	goroutines, err := settled(func() ([]leftover.Finding, error) { return leftover.Goroutines(o.root) })
	if err != nil {
		return nil, err
	}

	if len(goroutines) > 0 {
		return goroutines, nil // they may use the memory
	}

	series, err := leftover.InMetrics(o.metrics, objects)

	return append(series, leftover.InMemory(o.Driver, objects, read.InUse())...), err
}

// settled returns what is left in the process after a time. What has nothing more to do may still run, or
// be open, when the driver has ended.
func settled(find func() ([]leftover.Finding, error)) (found []leftover.Finding, err error) {
	for end := time.Now().Add(settleLimit); ; time.Sleep(time.Millisecond) {
		found, err = find()
		if err != nil || len(found) == 0 || time.Now().After(end) {
			return found, err
		}
	}
}

// openedSince returns the files of the process that were not open before and are not closed.
func openedSince(before leftover.Files) ([]leftover.Finding, error) {
	return settled(func() ([]leftover.Finding, error) { return leftover.OpenedSince(before) })
}

// settleLimit is how long a goroutine may take to return, and a file to be closed.
const settleLimit = 10 * time.Second

// objectsIn returns the directory with the objects of a pool, which may be embedded.
func objectsIn(directory string) string {
	if _, err := os.Lstat(filepath.Join(directory, layout.EmbeddedImage)); err == nil {
		return filepath.Join(directory, layout.EmbeddedMountPoint)
	}

	return directory
}

// checkLeft fails the test for all that the driver has left without an object that exists, in the
// state, in the pools and in the memory.
func (d *Driver) checkLeft(tb testing.TB) {
	tb.Helper()

	if tb.Failed() || tb.Skipped() {
		return // it has not come to its end
	}

	read, err := leftover.ReadState(d.Config.StateDir)
	if err != nil {
		d.report(tb, []leftover.Finding{{Kind: leftover.Record, What: err.Error()}})

		return
	}

	var found []leftover.Finding

	inPools := leftover.Objects{}
	known := read.Has

	if d.Config.Mode == driver.ModeNode {
		known = nil
	}

	for _, directory := range d.Config.Pools {
		entries, err := leftover.Entries(objectsIn(directory), known)

		quotas, quotaErr := leftover.Quotas(objectsIn(directory))
		objects, listErr := leftover.InPool(objectsIn(directory))
		maps.Copy(inPools, objects)

		found = slices.Concat(found, entries, quotas)

		if err := errors.Join(err, quotaErr, listErr); err != nil {
			found = append(found, leftover.Finding{Kind: leftover.Entry, What: err.Error()})
		}
	}

	assignments, err := leftover.Assignments(d.Config.Node.Direct.Root)
	require.NoError(tb, err)

	// Not when the driver has ended: by then another one of the test may use its pools.
	descriptors, err := leftover.Descriptors(d.Root)
	require.NoError(tb, err)

	if !d.settled {
		// An ended driver removes them when it is started again.
		delete(read.Records, leftover.Checks)
	}

	d.report(tb, slices.Concat(found, assignments, descriptors, read.Left(inPools)))
}

// report fails the test for findings that it has not declared.
func (d *Driver) report(tb testing.TB, found []leftover.Finding) {
	tb.Helper()

	for _, each := range found {
		if !slices.Contains(d.leaves, each.Kind) {
			tb.Error(each)
		}
	}
}

// writeLeft hands findings over to the process that started this one.
func writeLeft(root string, found []leftover.Finding) error {
	text, err := json.Marshal(found)
	if err != nil {
		return err
	}

	return os.WriteFile(filepath.Join(root, leftFile), text, 0o600)
}

// readLeft returns what the driver's process has found.
func readLeft(root string) (found []leftover.Finding, err error) {
	text, err := os.ReadFile(filepath.Join(root, leftFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}

	if err == nil {
		err = json.Unmarshal(text, &found)
	}

	return found, err
}

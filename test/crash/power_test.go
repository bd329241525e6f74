package crash_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/writelog"
)

const (
	// powerSteps is the least number of steps of each worker in a recording.
	powerSteps = 40
	// checkEach is at how many points the disk's filesystem is checked once.
	checkEach = 8
	// lazyFlush is longer than a lazy change of the state waits.
	lazyFlush = 300 * time.Millisecond
	// settled only ends a wait for removals in the background.
	settled = 30 * time.Second
)

// TestPowerFailure records the writes of the disk with state and pool under mixed load, makes
// the disk as power failures at many points leave it, and starts the driver on each.
func TestPowerFailure(t *testing.T) {
	namespace.NeedRoot(t)

	seed, points := number(t, "seed"), int(number(t, "points"))
	built := build(t)
	types := []string{filesystem.Ext4, filesystem.XFS, filesystem.Btrfs}

	for i, fsType := range types {
		t.Run(fsType, func(t *testing.T) {
			number := (points + len(types) - 1) / len(types)
			s := newScenario(t, built, seed+int64(i))
			s.copyOften, s.site.reflinks, s.site.limits = copyOften, fsType != filesystem.Ext4, fsType == filesystem.Btrfs
			s.site.disk = temporaryDirectory(t)

			newRecording(t, s, fsType, max(powerSteps, number)).replay(t, seed, number)
		})
	}
}

// recording is a load, and the writes of the disk that it was made on.
type recording struct {
	*scenario

	fsType string
	log    *writelog.Log
	// durable is the disk with the first replayed entries of the log.
	durable  *os.File
	replayed int
	// begin and end are the first and the last point of the load.
	begin, end int
	// foundVolumes and foundSnapshots count what was found after power failures.
	foundVolumes, foundSnapshots int
}

// newRecording lets the workers make so many steps each.
func newRecording(t *testing.T, s *scenario, fsType string, steps int) *recording {
	t.Helper()

	return record(t, s, fsType, func(p *process) {
		s.together(func(w *worker) { w.loadFor(p, steps) })
	})
}

// record returns the recording of a load.
func record(t *testing.T, s *scenario, fsType string, load func(*process)) *recording {
	t.Helper()

	work := temporaryDirectory(t)
	served := filepath.Join(work, "served")
	require.NoError(t, os.Mkdir(served, 0o700))

	disk, durable, log := filepath.Join(served, "disk"), filepath.Join(work, "durable"), filepath.Join(work, "log")
	makeDisk(t, disk, fsType)
	copyDisk(t, disk, durable)

	server := faults.ServeRecorded(t, served, log)
	require.True(t, mountDisk(t, filepath.Join(server.Path, "disk"), fsType, s.site.disk),
		"the log has what the page cache writes, not what the filesystem writes")
	t.Cleanup(func() { s.site.sweep(t) })
	require.NoError(t, os.Mkdir(s.site.pool(), 0o700))

	parent, err := os.Open(s.site.disk)
	require.NoError(t, err)
	require.NoError(t, unix.Syncfs(int(parent.Fd())))
	require.NoError(t, parent.Close())

	r := &recording{scenario: s, fsType: fsType, begin: server.Recorded(t)}
	s.history = &history{position: func() int { return server.Recorded(t) }}

	s.site.coverBoot(t)

	p := s.site.start(t, s.fuse.watch)
	require.NoError(t, p.waitReady(t.Context()))
	load(p)

	r.end = server.Recorded(t)

	s.together(func(w *worker) { w.rest(p) })
	require.False(t, t.Failed(), "want: no failed call in the load")
	p.terminate(t)
	require.NoError(t, unix.Unmount(s.site.disk, 0))
	server.End(t)

	r.log, err = writelog.Open(log)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.log.Close()) })

	r.durable, err = os.OpenFile(durable, os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.durable.Close()) })
	t.Logf("%d calls, %d entries in the log, %d of them flushes; %s", len(s.history.calls), r.log.Len(), r.flushes(), s.history.mix())

	return r
}

func (r *recording) flushes() int {
	flushes := 0

	for _, each := range r.log.Entries() {
		if each.Kind == writelog.Flush {
			flushes++
		}
	}

	return flushes
}

// rest unpublishes and unstages all volumes.
func (w *worker) rest(p *process) {
	for _, v := range slices.Clone(w.volumes) {
		w.walk(p, v, v.rest)
	}
}

// rest is the next step until the volume is at most attached.
func (v *volume) rest() *step {
	if v.phase < staged {
		return nil
	}

	return v.down()
}

// failure is one power failure.
type failure struct {
	point int
	// keep is what is kept of the writes after the last flush.
	keep string
}

const (
	keepAll  = "all"
	keepSome = "some"
	keepNone = "none"
)

// failures returns so many power failures in the order of their points: every other one is at
// the acknowledgement of a call.
func (r *recording) failures(random *rand.Rand, number int) []failure {
	all := make([]failure, number)

	for i := range all {
		all[i] = failure{point: r.begin + random.IntN(r.end-r.begin+1), keep: []string{keepAll, keepSome, keepNone}[random.IntN(3)]}

		if i%2 == 0 {
			all[i].point = min(r.end, r.history.calls[random.IntN(len(r.history.calls))].acknowledged)
		}
	}

	slices.SortFunc(all, func(a, b failure) int { return cmp.Compare(a.point, b.point) })

	return all
}

// replay checks the driver after so many power failures.
func (r *recording) replay(t *testing.T, seed int64, number int) {
	t.Helper()

	began := time.Now()
	random := rand.New(chacha(seed, len(r.workers)+1))

	for i, each := range r.failures(random, number) {
		ok := t.Run(fmt.Sprintf("%d of %d, %s", each.point, r.log.Len(), each.keep), func(t *testing.T) {
			r.after(t, each, random, i%checkEach == 0)
		})
		if !ok {
			return
		}
	}

	compared := 0
	for _, w := range r.workers {
		compared += w.compared
	}

	t.Logf("%d power failures in %s: 0 failed starts, 0 of %d volumes and 0 of %d snapshots lost, the data of %d volumes was intact, "+
		"%d audits found nothing leaked", number, time.Since(began).Round(time.Second), r.foundVolumes, r.foundSnapshots, compared, r.audits)
}

// after checks the driver after one power failure.
func (r *recording) after(t *testing.T, at failure, random *rand.Rand, withFsck bool) {
	t.Helper()

	whole, calls := r.t, r.history.calls
	r.t = t
	r.history.position = func() int { return r.end } // what is done from now on is not recorded

	defer func() { r.t, r.history.calls = whole, calls }()

	r.history.at(at.point, r.workers)
	r.check(t, at, random, withFsck)
}

// disk makes the disk that the power failure leaves.
func (r *recording) disk(t *testing.T, at failure, random *rand.Rand) string {
	t.Helper()

	durable := r.log.Durable(at.point)
	if durable > r.replayed {
		require.NoError(t, r.log.Apply(r.durable, r.replayed, durable))
		r.replayed = durable
	}

	path := filepath.Join(t.TempDir(), "disk")
	copyDisk(t, r.durable.Name(), path)

	disk, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)

	defer disk.Close()

	const half = 0.5

	switch at.keep {
	case keepAll:
		require.NoError(t, r.log.Apply(disk, durable, at.point))
	case keepSome:
		require.NoError(t, r.log.ApplySome(disk, durable, at.point, random, half))
	}

	return path
}

// check starts the driver on the disk that the power failure leaves. Everything that was
// acknowledged before the point is there, calls that were in progress can be repeated, and then
// nothing else is there.
func (r *recording) check(t *testing.T, at failure, random *rand.Rand, withFsck bool) {
	t.Helper()

	path := r.disk(t, at, random)
	mountDisk(t, path, r.fsType, r.site.disk)
	t.Cleanup(func() {
		if t.Failed() {
			r.site.lastWords(t)
		}

		r.site.sweep(t)
	})
	require.NoError(t, os.RemoveAll(r.site.kubelet()))
	require.NoError(t, os.Mkdir(r.site.kubelet(), 0o750))

	r.site.setBoot(t, "after "+t.Name())

	p := r.site.start(t, r.fuse.watch)
	require.NoError(t, p.waitReady(t.Context()), "start after the power failure")
	r.checkAcknowledged(p)
	r.checkFiles(t)

	r.together(func(w *worker) { w.settleAll(p) })
	require.False(t, t.Failed(), "want: calls that were in progress can be repeated")
	r.checkFiles(t)
	r.auditSettled(t)

	for _, w := range r.workers {
		r.foundVolumes += len(w.volumes)
		r.foundSnapshots += len(w.snapshots)
	}

	r.together(func(w *worker) { w.compare(p) })
	require.False(t, t.Failed(), "want: the data that was fsynced")
	r.auditSettled(t)

	p.terminate(t)
	r.verifyPool(t)
	require.Empty(t, r.site.panics(t), "want: the driver does not panic")
	r.awaitDetached(t)
	require.NoError(t, unix.Unmount(r.site.disk, 0))

	if withFsck {
		harness.RequireSound(t, r.fsType, path)
	}
}

// awaitDetached waits for the end of what the unmount has begun.
func (r *recording) awaitDetached(t *testing.T) {
	t.Helper()

	require.Eventually(t, func() bool { return len(r.site.devices(t)) == 0 }, settled, 10*time.Millisecond, "a device of the pool is left")
}

// settleAll repeats the calls that were in progress, and attaches what was never attached: its
// image may not be durable before.
func (w *worker) settleAll(p *process) {
	if !w.settleCopies(p) {
		return
	}

	for _, v := range slices.Clone(w.volumes) {
		w.walk(p, v, v.settle)

		if v.phase == created && v.pending == nil {
			w.do(p, v, v.attach())
		}
	}
}

// compare restores a snapshot, publishes all volumes, compares their data, and deletes some.
func (w *worker) compare(p *process) {
	if len(w.snapshots) > 0 {
		s := w.snapshots[w.random.IntN(len(w.snapshots))]
		if !w.makeCopy(p, s.of[w.random.IntN(len(s.of))]) {
			return
		}
	}

	for _, v := range slices.Clone(w.volumes) {
		w.walk(p, v, v.up)

		if at, ok := v.anyTarget(); ok {
			w.do(p, v, v.read(at))
			w.do(p, v, v.checkLimit(w.site, at))
			w.compared++
		}

		if w.random.IntN(3) == 0 {
			w.walk(p, v, v.down)
		} else {
			w.walk(p, v, v.rest)
		}
	}
}

// checkFiles checks that each durable image has at least the size that was acknowledged: a shorter
// one would read as an image whose end is missing.
func (r *recording) checkFiles(t *testing.T) {
	t.Helper()

	check := func(path string, kind kind, capacity int64, object string) {
		info, err := os.Stat(path)
		require.NoError(t, err, "%s of %s", object, kind.name)
		require.Equal(t, kind.image(), info.Mode().IsRegular(), "%s of %s", object, kind.name)

		if kind.image() {
			require.GreaterOrEqual(t, info.Size(), capacity, "%s of %s is short", object, kind.name)
		}
	}

	for _, w := range r.workers {
		for _, v := range w.volumes {
			if v.durable && (v.pending == nil || v.pending.name != "delete") {
				check(r.site.object("volume", v.kind, v.claim.VolumeID), v.kind, v.capacity, "volume "+v.claim.VolumeID)
			}
		}

		for _, s := range w.snapshots {
			for _, of := range s.of {
				if s.phase == created && s.pending == nil {
					check(r.site.object("snapshot", of.kind, of.snapshotID), of.kind, of.capacity, "snapshot "+of.snapshotID)
				}
			}
		}
	}
}

// object returns the path of a volume's or a snapshot's file or directory (docs/architecture.md,
// "The pool").
func (s *site) object(what string, kind kind, id string) string {
	directory := "snapshots"

	switch {
	case what == "snapshot":
	case kind.image():
		directory = "images"
	default:
		directory = "directories"
	}

	if kind.image() {
		id += ".img"
	}

	return filepath.Join(s.pool(), directory, id)
}

// auditSettled is audit, once the removals in the background are done.
func (r *recording) auditSettled(t *testing.T) {
	t.Helper()

	want := r.expected()
	removing := func() []string { return entries(t, filepath.Join(r.site.pool(), "removing")) }
	late := time.Now().Add(settled)

	for time.Now().Before(late) {
		if len(removing()) == 0 && want.equal(r.site.inventory(t)) {
			break
		}

		time.Sleep(10 * time.Millisecond) // the end of a removal has no event
	}

	require.Equal(t, want, r.site.inventory(t))
	require.Empty(t, removing(), "removals that are not complete")
	r.audits++
}

// verifyPool runs `touchstone state verify` on state and pool: no object without a record, and no
// record without an object.
func (r *recording) verifyPool(t *testing.T) {
	t.Helper()

	output, err := child.Command(t, r.site.binary, "state", "verify",
		"--state-dir="+r.site.state(), "--pool=default="+r.site.pool()).CombinedOutput()
	require.NoError(t, err, "%s", output)
}

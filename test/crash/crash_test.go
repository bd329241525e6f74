package crash_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/namespace"
)

const (
	workers = 5
	// each worker has this many volumes at a time.
	volumesEach = 4
	// volumesAtMost are a worker's volumes with those that are copies: the pool holds them, however
	// long the load is.
	volumesAtMost = 12
	// steps end a load in which the moment of death did not come.
	steps = 400
)

func TestCrash(t *testing.T) {
	namespace.NeedRoot(t)

	seed, kills := number(t, "seed"), int(number(t, "kills"))
	built := build(t)

	t.Run("mixed load", func(t *testing.T) { newScenario(t, built, seed).run(kills, nil) })
	// The calls that take more than one step.
	t.Run("aimed", func(t *testing.T) {
		newScenario(t, built, seed+1).run(max(1, kills/2), []string{
			"CreateVolume", "DeleteVolume", "NodeStageVolume", "NodePublishVolume",
		})
	})
}

// scenario is a CO and the driver that it works with.
type scenario struct {
	t       *testing.T
	site    *site
	random  *rand.Rand
	fuse    *fuse
	workers []*worker
	began   time.Time

	// copyOften is in how many of a hundred steps there is something to do with
	// copies.
	copyOften int
	// deadly is how the driver dies under load.
	deadly func(*process)
	// history is nil in tests that kill the driver.
	history *history

	// starved are those of the kills that were the kernel's, for want of memory.
	starved                           int
	kills, early, kept, reads, audits int
	startTook                         time.Duration
}

// worker owns volumes and works on one of them at a time.
type worker struct {
	*scenario

	index, made int
	source      *rand.ChaCha8
	random      *rand.Rand
	volumes     []*volume
	// graves are the ids of acknowledged deletions.
	graves []string
	// snapshots are also groups of them.
	snapshots      []*snapshot
	snapshotGraves []string
	// copies are the volumes made of others.
	copies int
	// compared are the volumes whose data was compared after a power failure.
	compared int
}

func newScenario(t *testing.T, built string, seed int64) *scenario {
	t.Helper()
	t.Logf("seed %d", seed)

	source := chacha(seed, 0)
	s := &scenario{t: t, site: newSite(t, built), random: rand.New(source), fuse: newFuse(rand.New(source)), began: time.Now()}
	s.deadly = (*process).strike

	for i := range workers {
		source := chacha(seed, i+1)
		s.workers = append(s.workers, &worker{scenario: s, index: i, source: source, random: rand.New(source)})
	}

	t.Cleanup(func() {
		if t.Failed() {
			s.site.lastWords(t)
		}

		s.site.sweep(t)
	})

	return s
}

func chacha(seed int64, index int) *rand.ChaCha8 {
	var key [32]byte

	binary.LittleEndian.PutUint64(key[:], uint64(seed))
	binary.LittleEndian.PutUint64(key[8:], uint64(index))

	return rand.NewChaCha8(key)
}

func (s *scenario) run(kills int, aims []string) {
	s.t.Helper()

	for s.kills < kills {
		s.round(aims)
		require.False(s.t, s.t.Failed(), "after %d kills", s.kills)
	}

	s.finish()
	s.report()
}

// round is one life of the driver, from its start to its violent end.
func (s *scenario) round(aims []string) {
	s.t.Helper()

	p := s.start()
	if p == nil {
		return
	}

	s.checkAcknowledged(p)

	// Some unknown outcomes stay unknown, so that the retry is killed, too.
	if s.random.IntN(4) > 0 {
		s.tidy(p)
	}

	s.fuse.light(aims, func() { s.deadly(p) })
	s.together(func(w *worker) { w.load(p) })
	s.fuse.out()

	if p.outOfMemory() {
		s.starved++
	}

	p.kill(s.t)
	s.kills++

	if s.random.IntN(5) == 0 {
		s.site.verifyState(s.t)
	}
}

// start returns nil when it has killed the driver while it was starting.
func (s *scenario) start() *process {
	s.t.Helper()

	began := time.Now()
	p := s.site.start(s.t, s.fuse.watch)

	if s.kills > 0 && s.random.IntN(8) == 0 {
		time.Sleep(upTo(s.random, s.startTook)) // the moment of death is what is random here
		p.kill(s.t)
		s.kills++
		s.early++

		return nil
	}

	require.NoError(s.t, p.waitReady(s.t.Context()), "start after %d kills", s.kills)
	s.startTook = time.Since(began)

	return p
}

// tidy determines all unknown outcomes, takes some volumes down and audits the rest.
func (s *scenario) tidy(p *process) {
	s.t.Helper()

	s.together(func(w *worker) {
		if !w.settleCopies(p) {
			return
		}

		for _, v := range slices.Clone(w.volumes) {
			w.walk(p, v, v.settle)

			switch w.random.IntN(5) {
			case 0:
				w.walk(p, v, v.down)
			case 1:
				w.repeat(p, v)
			}
		}
	})
	require.False(s.t, s.t.Failed(), "after %d kills", s.kills)
	s.audit()
}

// finish reads the data of every volume once more and takes all of them down.
func (s *scenario) finish() {
	s.t.Helper()

	p := s.site.start(s.t, s.fuse.watch)
	require.NoError(s.t, p.waitReady(s.t.Context()))
	s.checkAcknowledged(p)

	s.together(func(w *worker) {
		w.finishCopies(p)

		for _, v := range slices.Clone(w.volumes) {
			w.walk(p, v, v.up)

			if place, ok := v.anyTarget(); ok {
				w.do(p, v, v.read(place))
			}

			w.walk(p, v, v.down)
		}
	})
	require.False(s.t, s.t.Failed(), "want: no goroutine of the test has failed")

	for entry, err := range p.Volumes(s.t.Context(), 0) {
		require.NoError(s.t, err)
		require.Fail(s.t, "a volume is left", "%v", entry)
	}

	p.terminate(s.t)
	require.Equal(s.t, newInventory(), s.site.inventory(s.t))
	s.site.verifyState(s.t)
	require.Empty(s.t, s.site.panics(s.t), "want: the driver does not panic")
}

func (s *scenario) together(work func(*worker)) {
	var all sync.WaitGroup

	for _, w := range s.workers {
		all.Go(func() { work(w) })
	}

	all.Wait()
}

func (s *scenario) volumes() []*volume {
	var all []*volume
	for _, w := range s.workers {
		all = append(all, w.volumes...)
	}

	return all
}

func (s *scenario) graves() []string {
	var all []string
	for _, w := range s.workers {
		all = append(all, w.graves...)
	}

	return all
}

// load works at random until the driver dies.
func (w *worker) load(p *process) { w.loadFor(p, steps) }

// loadFor makes so many steps at random, or fewer if the driver dies.
func (w *worker) loadFor(p *process, number int) {
	for range number {
		for len(w.volumes) < volumesEach {
			w.made++
			w.volumes = append(w.volumes, newVolume(w.site, w.source, fmt.Sprintf("volume-%d-%d", w.index, w.made)))
		}

		if !w.copySteps(p) {
			return
		}

		v := w.volumes[w.random.IntN(len(w.volumes))]
		if !w.do(p, v, v.next()) {
			return
		}
	}
}

// walk makes one step after the other until there is none, or one fails.
func (w *worker) walk(p *process, v *volume, next func() *step) {
	for step := next(); step != nil; step = next() {
		if !w.do(p, v, step) {
			return
		}
	}
}

// repeat makes calls whose result is there already: they succeed once more.
func (w *worker) repeat(p *process, v *volume) {
	if v.phase >= attached && v.phase <= staged {
		w.do(p, v, v.attach().idempotent())
	}

	if v.phase == staged {
		w.do(p, v, v.stage().idempotent())
	}

	for place := range v.published {
		w.do(p, v, v.publish(place).idempotent())
	}
}

func (s *step) idempotent() *step { return &step{name: s.name, call: s.call, at: s.at} }

// do makes a step and says whether the driver answered. An error is a failure
// of the test, unless the driver was killed.
func (w *worker) do(p *process, v *volume, next *step) bool {
	ctx, cancel := context.WithTimeout(context.Background(), hangs)
	defer cancel()

	made := &call{worker: w.index, name: next.name, began: w.history.now(), volume: v}

	if err := next.call(ctx, p.Client); err != nil {
		if p.lost(err) {
			v.pending = next

			return false
		}

		w.t.Errorf("%s of %s %s (%s) after %d kills: %v", next.name, v.kind.name, v.claim.VolumeID, v.name, w.kills, err)

		return false
	}

	v.pending = nil

	if next.then != nil {
		next.then()
	}

	w.history.acknowledge(made)

	if v.phase == deleted {
		w.bury(v)
	}

	return true
}

// bury removes what a CO makes for a volume; the driver has to have removed the
// rest.
func (w *worker) bury(v *volume) {
	w.graves = append(w.graves, v.claim.VolumeID)
	w.volumes = slices.DeleteFunc(w.volumes, func(other *volume) bool { return other == v })

	for _, directory := range []string{v.claim.StagingPath, v.claim.TargetPath} {
		if err := os.Remove(directory); err != nil && !os.IsNotExist(err) {
			w.t.Errorf("after the deletion of %s: %v", v.claim.VolumeID, err)
		}
	}
}

func (s *scenario) report() {
	s.t.Helper()

	var calls []string
	for _, name := range slices.Sorted(maps.Keys(s.fuse.answers)) {
		calls = append(calls, fmt.Sprintf("%s %d/%d", name, s.fuse.answers[name], s.fuse.unknown[name]))
	}

	made, copies, snapshots := 0, 0, 0
	for _, w := range s.workers {
		made += w.made
		copies += w.copies
		snapshots += len(w.snapshotGraves)
	}

	s.t.Logf("%d kills in %s (%d of them while starting): 0 failed starts, 0 of %d acknowledged volumes lost (looked for %d times), "+
		"0 of %d deleted ones back; %d times the data of a publication was intact after a restart, %d audits found nothing leaked",
		s.kills, time.Since(s.began).Round(time.Second), s.early, made, s.kept, len(s.graves()), s.reads, s.audits)
	s.t.Logf("%d volumes were made of others, of %d snapshots or of themselves", copies, snapshots)
	s.t.Logf("acknowledged/unknown calls: %s", strings.Join(calls, ", "))
}

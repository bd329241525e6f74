package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// soak is one run of the program.
type soak struct {
	options
	*site
	*process

	out      io.Writer
	volumes  *volumes
	troubles *troubles
	// cycles are whole lives, checks those that were asked for.
	cycles, checks atomic.Int64
	// answers are how long NodeGetVolumeHealth took.
	answers longest
	began   time.Time
}

// whole runs everything, in the order in which it has to be. Its errors are of
// the surroundings; a defect of the driver is a trouble.
func (s *soak) whole(ctx context.Context) error {
	// What the driver has from its first volume on is no growth.
	for _, each := range s.residentLives("warm-up") {
		s.attempt(ctx, each.whole)
	}

	before, err := s.readResidue()
	if err != nil {
		return err
	}

	fmt.Fprintln(s.out, "before:", before)

	s.load(ctx)
	s.troubles.add("leak", s.compare(before)...)

	if err := s.terminate(); err != nil {
		s.troubles.add("end", err.Error())
	}

	s.troubles.add("state", s.stateLeft(context.WithoutCancel(ctx))...)
	s.troubles.add("log", s.panics()...)

	return s.verdict()
}

// load has volumes come and go for as long as was asked for, or until ctx ends,
// with their health being read all the time.
func (s *soak) load(ctx context.Context) {
	s.began = time.Now()
	over, stop := context.WithTimeout(ctx, s.duration)

	defer stop()

	// The calls go on to their ends.
	calls := context.WithoutCancel(ctx)
	residents := s.residentLives("resident")

	var working, watching sync.WaitGroup

	for number := range s.workers {
		working.Go(func() { s.work(calls, over, number) })
	}

	for _, each := range residents {
		working.Go(func() { s.attempt(calls, func(ctx context.Context) error { return each.stay(ctx, over) }) })
	}

	if s.spoil {
		working.Go(func() { s.spoilOne(over, residents[0]) })
	}

	watched, unwatch := context.WithCancel(calls)
	defer unwatch()

	for _, each := range s.watchers() {
		watching.Go(func() { each(watched) })
	}

	watching.Go(func() { s.printProgress(watched) })
	watching.Go(func() {
		select {
		case <-watched.Done():
		case <-s.ended:
			s.troubles.add("end", "the driver ended by itself: "+s.command.ProcessState.String()+": "+s.lastLog())
			stop()
		}
	})

	working.Wait()
	unwatch()
	watching.Wait()
}

// attempt notes the error as a trouble.
func (s *soak) attempt(ctx context.Context, do func(ctx context.Context) error) {
	if err := do(ctx); err != nil {
		s.troubles.add("call", err.Error())
	}
}

// work lives one life after the other.
func (s *soak) work(ctx, over context.Context, worker int) {
	random := rand.New(rand.NewPCG(uint64(worker), 1))
	pools, all := s.poolNames(), kinds()

	for number := 0; over.Err() == nil; number++ {
		chosen := all[random.IntN(len(all))]
		pool := pools[random.IntN(len(pools))]
		name := fmt.Sprintf("%s in %s, worker %d, %d", chosen.name, pool, worker, number)

		s.attempt(ctx, s.newLife(chosen, pool, name, random).whole)
		s.cycles.Add(1)
	}
}

// residentLives are one of each kind in each pool.
func (s *soak) residentLives(what string) []*life {
	var all []*life

	for _, pool := range s.poolNames() {
		for number, each := range kinds() {
			random := rand.New(rand.NewPCG(uint64(number), 2))
			all = append(all, s.newLife(each, pool, fmt.Sprintf("%s %s in %s", what, each.name, pool), random))
		}
	}

	return all
}

// stay uses the volume until it is over: scheduled checks come while it is
// being written to.
func (l *life) stay(ctx, over context.Context) error {
	use := step{"use", func(ctx context.Context) error { return l.use(ctx, over) }}

	return l.wholly(ctx, slices.Concat(l.up(nil), []step{use, {"read checks", l.wasChecked}}, l.down()))
}

func (l *life) use(ctx, over context.Context) error {
	const oftenest, restores = 200 * time.Millisecond, 50

	for number := 1; over.Err() == nil; number++ {
		steps := []step{{"write", l.write}, {"read", l.read}}
		if number%restores == 0 && l.kind.checkable() {
			steps = append(steps, step{"snapshot and restore", l.restore})
		}

		if err := l.run(ctx, steps...); err != nil {
			return err
		}

		select {
		case <-over.Done():
		case <-time.After(oftenest):
		}
	}

	return nil
}

// spoilOne moves an image away and back, once half of the time is over.
func (s *soak) spoilOne(over context.Context, victim *life) {
	select {
	case <-over.Done():
		return
	case <-time.After(s.duration / 2):
	}

	image := filepath.Join(s.pools()[victim.pool], "images", victim.claim.VolumeID+".img")
	aside := filepath.Join(s.root, "aside.img")

	if err := os.Rename(image, aside); err != nil {
		s.troubles.add("spoil", err.Error())

		return
	}

	time.Sleep(time.Second)

	if err := os.Rename(aside, image); err != nil {
		s.troubles.add("spoil", err.Error())
	}
}

// printProgress prints a line periodically.
func (s *soak) printProgress(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			fmt.Fprintln(s.out, s.line())

			return
		case <-time.After(s.each):
			fmt.Fprintln(s.out, s.line())
		}
	}
}

func (s *soak) line() string {
	now, err := s.readResidue()
	if err != nil {
		return err.Error()
	}

	return fmt.Sprintf("%s: %d lives, %d checks asked for, %d conditions, %d other troubles; NodeGetVolumeHealth within %s; %s",
		time.Since(s.began).Round(time.Second), s.cycles.Load(), s.checks.Load(), s.troubles.count(condition),
		s.troubles.count("")-s.troubles.count(condition), s.answers.take().Round(time.Microsecond), now)
}

// verdict prints all troubles.
func (s *soak) verdict() error {
	fmt.Fprintf(s.out, "%d lives of volumes in %s: %d conditions, %d troubles in all\n", s.cycles.Load(), time.Since(s.began).Round(time.Second),
		s.troubles.count(condition), s.troubles.count(""))

	if s.troubles.count("") == 0 {
		return nil
	}

	s.troubles.list()

	return errNotWell
}

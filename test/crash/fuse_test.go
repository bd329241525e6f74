package crash_test

import (
	"context"
	"math/rand/v2"
	"path"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// fuse decides when the driver dies.
//
// Under mixed load that is some answered calls later, and then up to a few
// milliseconds. Aimed at a method it is while a call of that method is under
// way: after a random part of the time that an earlier one took.
type fuse struct {
	mu     sync.Mutex
	random *rand.Rand
	// aim is the method's name; empty counts every answer.
	aim   string
	left  int
	timer *time.Timer
	fire  func()
	took  map[string][]time.Duration
	// answers and unknown count the calls whose outcome the CO knows, or not.
	answers, unknown map[string]int
}

const (
	maxCalls = 60
	maxAimed = 6
	maxDelay = 5 * time.Millisecond
	// samples of durations are kept of each method.
	samples = 64
	// beyond lets a death also come just after the end of the call it is aimed at.
	beyond = 1.1
)

func newFuse(random *rand.Rand) *fuse {
	return &fuse{random: random, took: map[string][]time.Duration{}, answers: map[string]int{}, unknown: map[string]int{}}
}

// light arms the fuse for one run of the driver.
func (f *fuse) light(aims []string, fire func()) {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.fire = fire
	f.aim, f.left = "", 1+f.random.IntN(maxCalls)

	if len(aims) > 0 {
		f.aim, f.left = aims[f.random.IntN(len(aims))], 1+f.random.IntN(maxAimed)
	}
}

// out takes the fuse away, burnt or not.
func (f *fuse) out() {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.fire = nil

	if f.timer != nil {
		f.timer.Stop()
		f.timer = nil
	}
}

func (f *fuse) watch(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	name := path.Base(method)
	if name == "Probe" {
		return invoke(ctx, method, request, reply, conn, options...)
	}

	f.begins(name)

	began := time.Now()
	err := invoke(ctx, method, request, reply, conn, options...)
	f.ends(name, time.Since(began), err == nil)

	return err
}

func (f *fuse) begins(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.aim != name {
		return
	}

	delay := maxDelay
	if known := f.took[name]; len(known) > 0 {
		delay = known[f.random.IntN(len(known))]
	}

	f.burn(upTo(f.random, time.Duration(beyond*float64(delay))))
}

func (f *fuse) ends(name string, took time.Duration, answered bool) {
	f.mu.Lock()
	defer f.mu.Unlock()

	if !answered {
		f.unknown[name]++

		return
	}

	f.answers[name]++

	if len(f.took[name]) < samples {
		f.took[name] = append(f.took[name], took)
	} else {
		f.took[name][f.random.IntN(samples)] = took
	}

	if f.aim == "" {
		f.burn(upTo(f.random, maxDelay))
	}
}

func (f *fuse) burn(delay time.Duration) {
	if f.fire == nil {
		return
	}

	f.left--
	if f.left == 0 {
		f.timer = time.AfterFunc(delay, f.fire)
	}
}

func upTo(random *rand.Rand, limit time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(limit) + 1))
}

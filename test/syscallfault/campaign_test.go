package syscallfault_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

const (
	// poolBytes is the size of the filesystem of a pool that can reflink.
	poolBytes = 4 << 30
	// occurrences of one call in a step have injections of their own; of devices
	// and mount tables, which are many, only the first one.
	occurrences = 3
	// attempts of a call that fails before the driver is restarted.
	attempts = 7
)

// injection is one call that fails in one lifecycle.
type injection struct {
	life  *lifecycle
	at    point
	errno syscall.Errno
}

func (i *injection) String() string {
	return fmt.Sprintf("%s/%s/%s#%d/%s", i.life.name, i.at.step, i.at.key, i.at.n, unix.ErrnoName(i.errno))
}

// TestOneFailedCallLosesNothing fails one system call in each run of a lifecycle,
// has the CO repeat what failed, and restarts the driver.
func TestOneFailedCallLosesNothing(t *testing.T) {
	namespace.NeedRoot(t)

	binary := driverBinary(t)
	t.Logf("seed %d", *seed)

	var met atomic.Int64

	t.Cleanup(func() {
		if *only != "" && met.Load() == 0 {
			t.Errorf("no call is %q: name it as a failure prints it", *only)
		}
	})

	t.Run("plain", func(t *testing.T) {
		t.Parallel()

		c := &campaign{t: t, binary: binary, pool: "", lives: onPlainPools()}
		c.run(rand.New(rand.NewPCG(uint64(*seed), 1)))
		met.Add(int64(c.ran - c.missed))
	})
	t.Run("reflink", func(t *testing.T) {
		t.Parallel()

		c := &campaign{t: t, binary: binary, pool: testpool.Reflink(t, poolBytes), lives: onReflinkPools()}
		c.run(rand.New(rand.NewPCG(uint64(*seed), 2)))
		met.Add(int64(c.ran - c.missed))
	})
}

// driverBinary returns the path of the given binary, or of one that is built.
func driverBinary(t *testing.T) string {
	t.Helper()

	if *given != "" {
		return *given
	}

	binary := filepath.Join(t.TempDir(), "touchstone")
	require.NoError(t, child.BuildDriver(binary))

	return binary
}

// campaign is a series of injections on one kind of pool.
type campaign struct {
	t            *testing.T
	binary, pool string
	lives        []lifecycle
	site         *site
	turn         int

	ran, missed, failed, unrecovered int
}

func (c *campaign) run(random *rand.Rand) {
	c.t.Helper()
	c.newSite()

	defer func() { c.site.close(c.t) }()

	drawn := c.draw(random)
	for i := range drawn {
		if i > 0 && i%100 == 0 {
			c.t.Logf("%d injections, %d failed", i, c.failed)
		}

		if c.one(&drawn[i], random) != nil {
			c.site.close(c.t)
			c.newSite()
		}
	}

	c.t.Logf("%d injections ran, %d of them met their call, %d failed; %d needed the restart to recover",
		c.ran, c.ran-c.missed, c.failed, c.unrecovered)
}

// draw returns the injections to run: those that -only names, or those that have
// found a defect before and a random sample of a few lifecycles.
func (c *campaign) draw(random *rand.Rand) []injection {
	prefix, isPrefix := strings.CutSuffix(*only, "*")

	switch {
	case *only != "" && !isPrefix:
		return c.named([]string{*only})
	case *only != "":
		return slices.DeleteFunc(c.record(c.lives), func(i injection) bool { return !strings.HasPrefix(i.String(), prefix) })
	}

	lives := slices.Clone(c.lives)
	random.Shuffle(len(lives), func(i, j int) { lives[i], lives[j] = lives[j], lives[i] })

	half := (*injections + 1) / 2
	if 0 <= *injections && *injections <= sampled {
		lives = lives[:sampledLives]
	}

	all := c.record(lives)
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })

	if *injections < 0 || half >= len(all) {
		half = len(all)
	}

	return append(all[:half:half], c.named(found)...)
}

// named returns those of the injections that are of these lifecycles.
func (c *campaign) named(names []string) []injection {
	var all []injection

	for _, name := range names {
		life, rest, _ := strings.Cut(name, "/")
		step, rest, _ := strings.Cut(rest, "/")
		errnoAt, countAt := strings.LastIndex(rest, "/"), strings.LastIndex(rest, "#")
		require.Positive(c.t, countAt, name)
		require.Less(c.t, countAt, errnoAt, name)

		n, err := strconv.Atoi(rest[countAt+1 : errnoAt])
		require.NoError(c.t, err, name)

		for i := range c.lives {
			if c.lives[i].name == life {
				all = append(all, injection{
					life: &c.lives[i], at: point{step: step, key: rest[:countAt], n: n}, errno: errnoNamed(rest[errnoAt+1:]),
				})
			}
		}
	}

	return all
}

func errnoNamed(name string) syscall.Errno {
	for _, errno := range []syscall.Errno{unix.EIO, unix.ENOSPC, unix.EMFILE, unix.EBUSY, unix.EPERM} {
		if unix.ErrnoName(errno) == name {
			return errno
		}
	}

	return 0
}

// newSite has the bystander published, and data in it.
func (c *campaign) newSite() {
	c.t.Helper()

	s := newSite(c.t, c.binary, c.pool)
	c.site = s

	require.NoError(c.t, s.start(), "%s", s.lastLog())

	v := s.newVolume(image("ext4", smallBytes), bystander)
	for _, each := range []step{s.create(v), s.attach(v), s.stage(v), s.publish(v), v.fill()} {
		require.NoError(c.t, each.call(c.t.Context()), "%s the bystander", each.name)
		each.then()
	}
}

// record runs each lifecycle without a fault and returns all injections.
func (c *campaign) record(lives []lifecycle) []injection {
	c.t.Helper()

	var all []injection

	for i := range lives {
		var points []point

		c.site.injector.record(&points)
		err := c.live(&lives[i], nil)
		c.site.injector.record(nil)

		require.NoError(c.t, err, "%s without a fault: %s", lives[i].name, c.site.lastLog())

		for _, at := range points {
			if at.n > limitOf(at.key) {
				continue
			}

			for _, errno := range possible(at.key) {
				all = append(all, injection{life: &lives[i], at: at, errno: errno})
			}
		}

		if *listed {
			for _, at := range points {
				c.t.Logf("%s/%s/%s#%d", lives[i].name, at.step, at.key, at.n)
			}
		}
	}

	return all
}

func limitOf(key string) int {
	_, path, _ := strings.Cut(key, " ")
	if strings.Contains(key, ": ") || strings.HasPrefix(path, "/") || strings.Contains(key, "mount") || strings.HasPrefix(key, "fstat ") {
		return 1
	}

	return occurrences
}

// one runs one injection. An error means that the site is of no more use.
func (c *campaign) one(i *injection, random *rand.Rand) error {
	c.ran++

	by := syscall.SIGTERM
	if random.IntN(2) == 0 {
		by = syscall.SIGKILL
	}

	f := &fault{injection: i, by: by, early: random.IntN(3) == 0}

	err := c.live(i.life, f)
	if f.fired == "" {
		c.missed++
	}

	if err != nil {
		c.failed++
		c.t.Errorf("%s\n(%s; restart by %s, before the retry: %t)\n%v\n%s\nrepeat it with -args -only='%s'",
			i, f.fired, by, f.early, err, c.site.lastLog(), i)
	}

	return err
}

// fault is an injection and what came of it.
type fault struct {
	*injection

	by syscall.Signal
	// early restarts the driver before the failed call is repeated.
	early bool
	fired string
}

// live runs a lifecycle, with a fault in one of its steps.
func (c *campaign) live(life *lifecycle, f *fault) error {
	c.turn++

	kept := *c.site.model
	turn := fmt.Sprintf("turn-%d", c.turn)

	for _, each := range life.steps(c.site, turn) {
		var armed *fault
		if f != nil && f.at.step == each.name {
			armed = f
		}

		if err := c.perform(&each, armed); err != nil {
			return fmt.Errorf("%s: %w", each.name, err)
		}
	}

	if err := c.site.verify(false); err != nil {
		return fmt.Errorf("in the end: %w", err)
	}

	*c.site.model = kept

	return os.RemoveAll(filepath.Join(c.site.kubelet(), "pods", turn))
}

func (c *campaign) perform(each *step, f *fault) error {
	s := c.site

	name := each.name
	if each.covered {
		name = ""
	}

	if each.starts {
		return c.start(each, f)
	}

	if f == nil {
		s.injector.begin(name, nil, 0)
		defer s.injector.end()

		err := c.call(each)
		if err == nil {
			each.then()
		}

		return err
	}

	s.injector.begin(name, &f.at, f.errno)
	err := c.call(each)

	if err != nil && !f.early {
		err = c.repeat(each, err)
	}

	if f.fired = s.injector.end(); f.fired == "" {
		if err == nil {
			each.then()
		}

		return err
	}

	if err != nil {
		if wrong := judge(err); wrong != nil {
			return wrong
		}

		if !f.early {
			c.unrecovered++
			c.t.Logf("%s: %s failed until the restart: %v", f, each.name, err)
		}

		return c.recover(each, f)
	}

	each.then()

	if err := s.restart(f.by); err != nil {
		return fmt.Errorf("the restart: %w", err)
	}

	return s.verify(false)
}

// start ends the driver and starts it with a fault. It may refuse to start then,
// but not the next time.
func (c *campaign) start(each *step, f *fault) error {
	s := c.site

	by, armed, errno := syscall.SIGKILL, (*point)(nil), syscall.Errno(0)
	if f != nil {
		by, armed, errno = f.by, &f.at, f.errno
	}

	if _, err := s.end(by); err != nil {
		return err
	}

	s.injector.begin(each.name, armed, errno)
	err := s.start()
	if err == nil {
		err = s.settle()
	}

	fired := s.injector.end()

	if f != nil {
		f.fired = fired
	}

	if fired == "" {
		return err
	}

	if err != nil && !errors.Is(err, errEnded) {
		return err
	}

	if err := s.restart(f.by); err != nil {
		return fmt.Errorf("the next start: %w", err)
	}

	return s.verify(false)
}

// recover restarts the driver and then repeats the call, which must succeed.
func (c *campaign) recover(each *step, f *fault) error {
	if err := c.site.restart(f.by); err != nil {
		return fmt.Errorf("the restart: %w", err)
	}

	if err := c.site.verify(true); err != nil {
		return fmt.Errorf("after the restart: %w", err)
	}

	if err := c.repeat(each, nil); err != nil {
		return fmt.Errorf("repeated after the restart: %w", err)
	}

	each.then()

	return c.site.verify(false)
}

func (c *campaign) call(each *step) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()

	return each.call(ctx)
}

// repeat repeats a call as a CO does.
func (c *campaign) repeat(each *step, err error) error {
	for n := range attempts {
		if wrong := judge(err); wrong != nil {
			return wrong
		}

		if err != nil || n > 0 {
			time.Sleep(20 * time.Millisecond << n) // a CO's backoff
		}

		if err = c.call(each); err == nil {
			return nil
		}
	}

	return err
}

// judge refuses the codes that say something else than what happened.
func judge(err error) error {
	if errors.Is(err, errWrong) {
		return err
	}

	switch status.Code(err) {
	case codes.OK, codes.Internal, codes.Unavailable, codes.ResourceExhausted, codes.Aborted, codes.FailedPrecondition:
		return nil
	default:
		return fmt.Errorf("%w: the code of: %w", errWrong, err)
	}
}

package crash_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// enoughMemory is the limit within which the driver and its tools serve, and start.
const enoughMemory = 128 * mib

// TestCrashOutOfMemory has the kernel kill the driver, or a tool of it, for want of
// memory, while they work in a cgroup with a limit.
func TestCrashOutOfMemory(t *testing.T) {
	namespace.NeedRoot(t)

	s := newScenario(t, build(t), number(t, "seed")+4)
	s.site.memory = newMemoryGroup(t)
	s.site.poolAt, s.copyOften, s.site.reflinks = testpool.Reflink(t, reflinkPoolBytes), copyOften, true
	s.deadly = (*process).starve
	s.run(max(1, int(number(t, "kills"))/2), nil)

	require.Positive(t, s.starved, "no driver was killed for want of memory")
	t.Logf("%d of %d drivers were killed for want of memory, the others by the test: one of their tools was, or nothing", s.starved, s.kills)
}

// memoryGroup is a cgroup with a limit of memory.
type memoryGroup struct{ dir, limit string }

// newMemoryGroup skips the test where no such cgroup can be made.
func newMemoryGroup(t *testing.T) *memoryGroup {
	t.Helper()

	name := fmt.Sprintf("touchstone-crash-%d", os.Getpid())

	for _, g := range []*memoryGroup{
		{"/sys/fs/cgroup/memory/" + name, "memory.limit_in_bytes"},
		{"/sys/fs/cgroup/" + name, "memory.max"},
	} {
		if os.Mkdir(g.dir, 0o755) != nil {
			continue
		}

		t.Cleanup(func() {
			// A tool of a killed driver may be ending.
			require.Eventually(t, func() bool { return unix.Rmdir(g.dir) == nil }, await.Limit, time.Millisecond, "%s is not empty", g.dir)
		})

		if g.set(enoughMemory) == nil {
			return g
		}
	}

	t.Skip("no cgroup with a limit of memory can be made here")

	return nil
}

func (g *memoryGroup) set(bytes int64) error {
	return os.WriteFile(filepath.Join(g.dir, g.limit), []byte(strconv.FormatInt(bytes, 10)), 0)
}

// entered is the command, in the cgroup from its first page on, and first among those
// that the kernel kills there.
func (g *memoryGroup) entered(command []string) []string {
	if g == nil {
		return command
	}

	const script = `echo $$ > "$0/cgroup.procs" && echo 1000 > /proc/self/oom_score_adj && exec "$@"`

	return append([]string{"sh", "-c", script, g.dir}, command...)
}

// exhaust takes all of the memory until the kernel, having killed all others, kills
// what takes it.
func (g *memoryGroup) exhaust() {
	const script = `echo $$ > "$0/cgroup.procs" && exec dd if=/dev/zero of=/dev/null bs=1G count=1`

	_ = exec.Command("sh", "-c", script, g.dir).Run() // it is killed
}

// starve has the kernel find no memory for the driver.
func (p *process) starve() {
	p.starved.Store(true)
	p.killed.Store(true)
	p.memory.exhaust()
	close(p.exhausted)
}

// lost reports whether the outcome of a call that failed is unknown: its driver was
// killed. Where the kernel has killed a tool instead, the driver follows now.
func (p *process) lost(err error) bool {
	if p.starved.Load() && !unanswered(err) {
		p.strike()

		return true
	}

	return p.killed.Load() && unanswered(err)
}

// outOfMemory waits for the end of a driver that was starved, and reports whether the
// kernel has killed it.
func (p *process) outOfMemory() bool {
	if !p.starved.Load() {
		return false
	}

	// The next driver needs the memory.
	<-p.exhausted

	if p.struck.Load() {
		return false
	}

	select {
	case <-p.ended:
		return true
	case <-time.After(time.Second): // it got along with what it had
		return false
	}
}

package syscallfault

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Case is an operation of which each call beneath a directory fails once.
type Case struct {
	// Operation is the name by which ServeIfAsked has it.
	Operation string
	// Within is the directory in which each run gets its own; empty is a temporary one.
	Within string
	// Prepare makes the directory as the operation finds it; nil leaves it empty.
	Prepare func(t *testing.T, directory string)
	// Lossy are patterns of what a power failure may lose of although the operation has succeeded.
	Lossy []string
	// Reported are the beginnings of calls of which the operation must report a failure, even if what it
	// has changed is durable.
	Reported []string
	// Unreported matches those of Reported of which it need not; nil matches none.
	Unreported *regexp.Regexp
	// Causes has the message of each failure name its cause, the errno.
	Causes bool
	// Mounts has calls fail that are about mounts, mount tables and loop devices, too. Of each kind of call
	// only the first one fails, and none of a tool or about a device that has another test's image. The errno
	// says nothing about the file.
	Mounts bool
	// Beside is a directory outside of the operation's own, as one of sysfs, beneath which calls fail, too.
	Beside string
	// Every has each call fail of those that are the same, and not only the first ones and the last one.
	Every bool
	// Except matches the calls that do not fail; nil matches none.
	Except *regexp.Regexp
	// Lasting is in the message of a failure that lasts until the process ends, as that of a read-only
	// state. Such an operation fails when it is repeated, and succeeds once it has been begun again.
	Lasting string
	// Failed checks what a failed operation leaves, before it is repeated.
	Failed func(t *testing.T, directory string)
	// Verify checks the directory after a success.
	Verify func(t *testing.T, directory string)
}

// watch counts the calls beneath a directory, and fails one of them.
type watch struct {
	directory string
	mounts    bool
	beside    string
	every     bool
	unsynced  unsynced

	// seen counts the calls by what they do, in the order of calls.
	seen  map[string]int
	calls []string
	// failing is the call that fails, errno its answer, and failed is set when it did.
	failing string
	errno   syscall.Errno
	failed  bool
	// made maps the ids in names to those in calls.
	made map[string]string
}

var (
	id = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	// inode is the number in the path of a file without a name, or an inode with its device and time.
	inode = regexp.MustCompile(`#\d+|\d+:\d+-\d+-[0-9.]+`)
)

// steady replaces what differs from run to run, so that another run makes the same calls: numbers of
// inodes and the ids that a run makes. Those that a test has chosen have a group of zeros.
func (w *watch) steady(name string) string {
	// Most names have neither an id nor an inode, and the search for both patterns in each call takes long.
	const dashesOfID = 4
	if strings.Count(name, "-") >= dashesOfID {
		name = id.ReplaceAllStringFunc(name, w.steadyID)
	}

	if strings.ContainsAny(name, "#:") {
		name = inode.ReplaceAllLiteralString(name, "inode")
	}

	return name
}

// steadyID returns the id if a test has chosen it, or else the number that it has in this run.
func (w *watch) steadyID(id string) string {
	if strings.Contains(id, "-0000-") {
		return id
	}

	if w.made[id] == "" {
		w.made[id] = fmt.Sprintf("ID%d", len(w.made)+1)
	}

	return w.made[id]
}

func (w *watch) decide(call *Call) syscall.Errno {
	if w.mounts && call.Tool != "" {
		return 0
	}

	name, err := filepath.Rel(w.directory, call.Path)
	if err != nil || !filepath.IsLocal(name) {
		name = Outside(call)

		isBeside := w.beside != "" && strings.HasPrefix(call.Path, w.beside+"/")
		if !isBeside && (!w.mounts || name == "" || isOther(call.Path, w.directory, backingFile)) {
			return 0
		}
	}

	name = w.steady(name)
	key := call.Name + " " + name
	if call.Detail != 0 {
		key = fmt.Sprintf("%s+%#x %s", call.Name, call.Detail, name)
	}

	if call.Tool != "" {
		key = call.Tool + ": " + key
	}

	w.seen[key]++
	if w.seen[key] == 1 {
		w.calls = append(w.calls, key)
	}

	if nth(key, w.seen[key]) == w.failing {
		w.failed = true

		return w.errno
	}

	w.unsynced.apply(call)

	return 0
}

func nth(key string, n int) string { return fmt.Sprintf("%s#%d", key, n) }

// repeated are how many calls that are the same fail; of more, the last one fails, too.
const repeated = 4

// each returns the calls that are made to fail.
func (w *watch) each() []string {
	var calls []string

	for _, key := range w.calls {
		for n := 1; n <= w.seen[key]; n++ {
			if n == 1 || !w.mounts && (w.every || n <= repeated || n == w.seen[key]) {
				calls = append(calls, nth(key, n))
			}
		}
	}

	return calls
}

// errnos are those that a call is answered with.
func (c *Case) errnos(key string) []syscall.Errno {
	switch {
	case c.Mounts && strings.HasPrefix(key, "open"):
		return []syscall.Errno{unix.EMFILE}
	case c.Mounts:
		return []syscall.Errno{unix.ENOMEM}
	}

	for _, each := range []string{"write", "pwrite64", "fallocate", "ftruncate", "mkdirat", "rename", "copy_file_range", "linkat"} {
		if strings.HasPrefix(key, each) {
			return []syscall.Errno{unix.EIO, unix.ENOSPC}
		}
	}

	return []syscall.Errno{unix.EIO}
}

// EachOperationFailsOnce runs EachCallFailsOnce for each operation, in a test of its name, with the case that
// newCase returns for it.
func EachOperationFailsOnce(t *testing.T, operations map[string]Operation, newCase func(name string) *Case) {
	t.Helper()

	for name := range operations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			c := newCase(name)
			c.Operation = name
			EachCallFailsOnce(t, c)
		})
	}
}

// EachCallFailsOnce runs the operation once for each call that it makes beneath the directory, and has
// this one fail. Whenever the operation succeeds, also repeated after a failure, all that it has
// changed must be durable, Verify must pass, and no descriptor may be left open.
func EachCallFailsOnce(t *testing.T, c *Case) {
	t.Helper()

	p := newProcess(t)

	// The first one finds what a machine keeps: device nodes, numbers of loop devices.
	first, _ := c.run(t, "nothing fails", p, "", 0)
	calls, _ := c.run(t, "nothing fails", p, "", 0)
	require.False(t, t.Failed(), "want: the operation succeeds when no call fails")

	calls = slices.DeleteFunc(calls, func(key string) bool { return !slices.Contains(first, key) })
	require.NotEmpty(t, calls, "the operation makes no call beneath its directory")

	for _, key := range calls {
		if c.Except != nil && c.Except.MatchString(key) {
			continue
		}

		for _, errno := range c.errnos(key) {
			done := false
			for n := 0; n < attempts && !done; n++ {
				_, done = c.run(t, key+" "+unix.ErrnoName(errno), p, key, errno)
			}

			if !done {
				// Another test's loop device may be gone, and with it a call about all of them.
				still, _ := c.run(t, "nothing fails", p, "", 0)
				require.NotContains(t, still, key, "want: the operation makes the call that was made to fail")
			}
		}
	}
}

// run makes one attempt in a test of its own, so that what one leaves is gone before the next. It is done if
// the call was made, or the test has failed.
func (c *Case) run(t *testing.T, name string, p *process, failing string, errno syscall.Errno) (calls []string, done bool) {
	t.Helper()

	passed := t.Run(name, func(t *testing.T) { calls, done = c.attempt(t, p, failing, errno) })

	return calls, done || !passed
}

// attempts are those to have a call fail. Which calls an operation makes may depend on what the machine does
// meanwhile: a loop device is taken by another test, or still being detached.
const attempts = 4

// attempt runs the operation in a fresh directory with one failing call, and repeats it if it fails.
// It returns the calls that may be made to fail, and whether the failing one was made.
func (c *Case) attempt(t *testing.T, p *process, failing string, errno syscall.Errno) (calls []string, made bool) {
	t.Helper()

	within := c.Within
	if within == "" {
		within = t.TempDir()
	}

	directory, err := os.MkdirTemp(within, "") //nolint:usetesting // within may be another filesystem
	require.NoError(t, err)

	directory, err = filepath.EvalSymlinks(directory)
	require.NoError(t, err)

	if c.Prepare != nil {
		c.Prepare(t, directory)
	}

	w := &watch{
		directory: directory, mounts: c.Mounts, beside: c.Beside, every: c.Every, unsynced: unsynced{}, seen: map[string]int{}, made: map[string]string{},
		failing: failing, errno: errno,
	}
	asked := request{Operation: c.Operation, Directory: directory}

	phase := func(name string, w *watch) string {
		asked.Phase = name

		return p.do(t, asked, w)
	}

	require.Empty(t, phase("begin", nil), "prepare the operation")

	failure := phase("run", w)
	calls, made = w.each(), w.failed

	if failure == "" {
		failure = "none"

		require.False(t, w.failed && slices.ContainsFunc(c.Reported, func(call string) bool { return strings.HasPrefix(failing, call) }) &&
			(c.Unreported == nil || !c.Unreported.MatchString(failing)), "the operation does not report the failure of %s", failing)
	} else {
		require.True(t, w.failed, "the operation fails although no call was made to fail: %s", failure)
		require.True(t, !c.Causes || strings.Contains(failure, errno.Error()),
			"want: the failure names its cause, %s: %s", errno, failure)
		c.failed(t, directory)
		c.repeat(t, directory, failure, func(name string) string { return phase(name, w) })
	}

	require.Empty(t, w.unsynced.beneath(directory, c.Lossy),
		"the operation has succeeded, and a power failure may lose changes of these; its failure before: %s", failure)
	require.Empty(t, phase("end", nil), "end the operation")
	c.Verify(t, directory)

	return calls, made
}

func (c *Case) failed(t *testing.T, directory string) {
	t.Helper()

	if c.Failed != nil {
		c.Failed(t, directory)
	}
}

// repeat repeats the operation after a failure. It must succeed then, or begun again after a lasting one.
func (c *Case) repeat(t *testing.T, directory, failure string, phase func(name string) string) {
	t.Helper()

	again := phase("run")

	if c.Lasting != "" && strings.Contains(failure, c.Lasting) {
		require.Contains(t, again, c.Lasting, "the operation is repeated after a failure that lasts")
		c.failed(t, directory)

		_ = phase("end") // it may fail for the same reason
		require.Empty(t, phase("begin"), "prepare the operation again after the failure %q", failure)
		c.failed(t, directory)

		again = phase("run")
	}

	require.Empty(t, again, "the operation is repeated after the failure %q", failure)
}

package faults

import (
	"encoding/gob"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

const (
	// silence is how long the child serves a parent that says nothing. It is long
	// because a machine under load stops everybody for seconds.
	silence = 30 * time.Second
	// waitLimit only ends a test that would hang.
	waitLimit = time.Minute
)

// Directory is a directory that is served by a child process.
type Directory struct {
	// Path is where it is served, Backing where its files really are.
	Path, Backing string

	command *exec.Cmd
	// dead says that the child was killed, ended that End was called.
	dead, ended bool

	mu     sync.Mutex
	socket net.Conn
	say    *gob.Encoder
	hear   *gob.Decoder
	// quiet ends the heartbeat.
	quiet chan struct{}
	beats sync.WaitGroup
}

// Serve serves a fresh directory in a fresh place until the test ends, and fails
// the test if it is still in use then. The test's TestMain must begin with
// ServeIfAsked.
func Serve(tb testing.TB) *Directory {
	tb.Helper()

	return serveFor(tb, silence)
}

// ServeLocking serves a directory that exists, as a filesystem of its own with
// the locks (flock) of what is behind it: two of them are what two machines see
// of a shared filesystem.
func ServeLocking(tb testing.TB, backing string) *Directory {
	tb.Helper()

	return serveWith(tb, charge{Backing: backing, Beat: silence, Locks: true})
}

// ServeRecorded serves a directory that exists and records each write, deallocation and sync of the
// one file in it in a new log at path. Syncs are not passed on.
func ServeRecorded(tb testing.TB, backing, path string) *Directory {
	tb.Helper()

	return serveWith(tb, charge{Backing: backing, Beat: silence, Log: path})
}

func serveFor(tb testing.TB, beat time.Duration) *Directory {
	tb.Helper()

	return serveWith(tb, charge{Backing: filepath.Join(tb.TempDir(), "backing"), Beat: beat})
}

func serveWith(tb testing.TB, given charge) *Directory {
	tb.Helper()

	root, err := filepath.EvalSymlinks(tb.TempDir())
	require.NoError(tb, err)

	given.At = filepath.Join(root, "served")
	require.NoError(tb, os.Mkdir(given.At, 0o700))
	require.NoError(tb, os.MkdirAll(given.Backing, 0o700))

	given.Backing, err = filepath.EvalSymlinks(given.Backing)
	require.NoError(tb, err)

	d := &Directory{Path: given.At, Backing: given.Backing, quiet: make(chan struct{})}
	d.start(tb, given)
	tb.Cleanup(func() { d.end(tb) })

	d.beats.Go(func() { d.live(given.Beat) })

	return d
}

func (d *Directory) start(tb testing.TB, given charge) {
	tb.Helper()

	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(tb, err)

	here, there := os.NewFile(uintptr(pair[0]), "control"), os.NewFile(uintptr(pair[1]), "control of the child")
	defer here.Close()
	defer there.Close()

	d.socket, err = net.FileConn(here)
	require.NoError(tb, err)

	// Not the test's context: it ends before what the test cleans up.
	d.command = exec.Command("/proc/self/exe")
	d.command.Env = append(os.Environ(), served+"=1")
	d.command.ExtraFiles = []*os.File{there}
	d.command.Stderr = tb.Output()
	require.NoError(tb, d.command.Start())

	d.say, d.hear = gob.NewEncoder(d.socket), gob.NewDecoder(d.socket)

	var first reply

	require.NoError(tb, d.socket.SetDeadline(time.Now().Add(waitLimit)))
	require.NoError(tb, d.say.Encode(given))
	require.NoError(tb, d.hear.Decode(&first), "the child has ended")
	require.Empty(tb, first.Problem, "want: the directory is served")
}

// Inject replaces all faults by these. Requests that are under way and hang are
// evaluated again. When the test ends, or by Release, all continue.
func (d *Directory) Inject(tb testing.TB, faults ...Fault) {
	tb.Helper()

	tb.Cleanup(func() {
		if !d.dead {
			d.Release(tb)
		}
	})

	_, err := d.order(order{Replace: true, Faults: faults})
	require.NoError(tb, err)
}

// Release takes all faults away: whatever hangs goes on.
func (d *Directory) Release(tb testing.TB) {
	tb.Helper()

	_, err := d.order(order{Replace: true})
	require.NoError(tb, err)
}

// Met returns how many requests have met a fault since the last Inject or
// Release.
func (d *Directory) Met(tb testing.TB) int {
	tb.Helper()

	answer, err := d.order(order{})
	require.NoError(tb, err)

	return answer.Met
}

// Recorded returns the number of entries in the log of ServeRecorded.
func (d *Directory) Recorded(tb testing.TB) int {
	tb.Helper()

	answer, err := d.order(order{})
	require.NoError(tb, err)

	return answer.Recorded
}

// End unmounts the directory and ends the child, before the test ends. The log is then complete.
func (d *Directory) End(tb testing.TB) {
	tb.Helper()
	d.end(tb)
	d.ended = true
}

// Kill kills the child: from then on all that is asked of the directory fails,
// and so does what was asked already.
func (d *Directory) Kill(tb testing.TB) {
	tb.Helper()

	d.hush()
	require.NoError(tb, d.command.Process.Kill())
	errtext.Require(tb, child.Wait(tb, d.command), "killed")
}

// hush ends the heartbeat.
func (d *Directory) hush() {
	d.dead = true
	close(d.quiet)
	d.beats.Wait()
}

func (d *Directory) order(given order) (reply, error) {
	d.mu.Lock()
	defer d.mu.Unlock()

	var answer reply

	if err := d.socket.SetDeadline(time.Now().Add(waitLimit)); err != nil {
		return answer, fmt.Errorf("talk to the server of %s: %w", d.Path, err)
	}

	if err := d.say.Encode(given); err != nil {
		return answer, fmt.Errorf("talk to the server of %s: %w", d.Path, err)
	}

	if err := d.hear.Decode(&answer); err != nil {
		return answer, fmt.Errorf("hear of the server of %s: %w", d.Path, err)
	}

	return answer, nil
}

func (d *Directory) live(beat time.Duration) {
	const often = 10

	ticker := time.NewTicker(beat / often)
	defer ticker.Stop()

	for {
		select {
		case <-d.quiet:
			return
		case <-ticker.C:
			// Later calls fail because the child has exited.
			_, _ = d.order(order{})
		}
	}
}

func (d *Directory) end(tb testing.TB) {
	tb.Helper()

	if d.ended {
		return
	}

	defer d.socket.Close()

	if d.dead {
		require.NoError(tb, unix.Unmount(d.Path, unix.MNT_DETACH))

		return
	}

	d.hush()

	answer, err := d.order(order{End: true})
	if err != nil {
		_ = d.command.Process.Kill()
	}

	if ended := child.Wait(tb, d.command); err != nil || ended != nil || answer.Problem != "" {
		tb.Errorf("end the server of %s: %v, %v, %s", d.Path, err, ended, answer.Problem)
	}
}

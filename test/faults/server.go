package faults

import (
	"encoding/gob"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/test/writelog"
)

// served marks the process that ServeIfAsked makes a server of.
const served = "TOUCHSTONE_TEST_FAULTS"

// control is the child's file descriptor of the socket to its parent.
const control = 3

// charge is what the parent says first: what the child has to serve, and how long
// it goes on without a word of its parent.
type charge struct {
	Backing, At string
	Beat        time.Duration
	// Locks has the locks of files be the backing files'.
	Locks bool
	// Log, unless empty, is where writes and syncs are recorded.
	Log string
}

// order is one message of the parent; an empty one says that it is alive.
type order struct {
	// Replace has the faults be these.
	Replace bool
	Faults  []Fault
	// End unmounts and ends the child.
	End bool
}

// reply is what the child says to each order, and once when it serves.
type reply struct {
	// Met is how many requests have met a fault since the last replacement.
	Met int
	// Recorded is the number of entries of the log, if there is one.
	Recorded int
	Problem  string
}

// ServeIfAsked is for the begin of the TestMain of tests that use Serve: in the
// process that this starts, it serves and does not return.
func ServeIfAsked() {
	if os.Getenv(served) == "" {
		return
	}

	// The whole process group gets it; what is mounted is still needed to clean
	// up. The socket is closed when the parent exits.
	signal.Ignore(unix.SIGINT, unix.SIGTERM)

	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "serve faults:", err)
		os.Exit(1)
	}

	os.Exit(0)
}

func serve() error {
	socket := os.NewFile(control, "control")

	parent, err := net.FileConn(socket)
	if err != nil {
		return fmt.Errorf("open the socket to the parent: %w", err)
	}

	_ = socket.Close()
	led := &leash{parent: parent, say: gob.NewEncoder(parent), hear: gob.NewDecoder(parent), active: newFaultSet()}

	var given charge
	if err := led.hear.Decode(&given); err != nil {
		return fmt.Errorf("hear what to serve: %w", err)
	}

	if err := led.mount(given); err != nil {
		return errors.Join(err, led.say.Encode(reply{Problem: err.Error()}))
	}

	defer func() {
		led.active.replace(nil)
		// Already done after an order to end. Forced, since that aborts the connection:
		// as the last process of its mount namespace this one unmounts, in the kernel and
		// before its descriptors are closed, what the parent has mounted of served images.
		_ = unix.Unmount(given.At, unix.MNT_FORCE)
		_ = unix.Unmount(given.At, unix.MNT_DETACH)
	}()

	return led.obey(given)
}

// leash is the child's end of the socket, and what it is led to do.
type leash struct {
	parent net.Conn
	say    *gob.Encoder
	hear   *gob.Decoder
	active *faultSet
	// log is nil where nothing is recorded.
	log *writelog.Writer
}

func (l *leash) mount(given charge) error {
	if given.Log != "" {
		var err error
		if l.log, err = writelog.Create(given.Log); err != nil {
			return err
		}
	}

	var stat unix.Stat_t
	if err := unix.Stat(given.Backing, &stat); err != nil {
		return fmt.Errorf("stat %s: %w", given.Backing, err)
	}

	root := &fs.LoopbackRoot{Path: given.Backing, Dev: stat.Dev}
	top := &node{LoopbackNode: &fs.LoopbackNode{RootData: root}, faults: l.active, log: l.log}
	root.RootNode = top

	// Names and attributes are cached for no time at all, so that every request
	// is made, and may fail.
	_, err := fs.Mount(given.At, top, &fs.Options{NullPermissions: true, MountOptions: fuse.MountOptions{
		FsName: given.Backing, Name: "faults", DirectMountStrict: true, DirectMountFlags: unix.MS_NODEV | unix.MS_NOSUID,
		MaxWrite: fuse.MAX_KERNEL_WRITE, EnableLocks: given.Locks,
		// A file whose requests hang leaves the others theirs.
		MaxBackground: 1024,
		// Else the kernel would read and write the backing files by itself.
		DisabledCapabilities: fuse.CAP_PASSTHROUGH,
	}})
	if err != nil {
		return fmt.Errorf("mount %s: %w", given.At, err)
	}

	return nil
}

// obey returns at the order to end, or when the parent has exited.
func (l *leash) obey(given charge) error {
	if err := l.say.Encode(reply{}); err != nil {
		return fmt.Errorf("say that it is mounted: %w", err)
	}

	for {
		if err := l.parent.SetReadDeadline(time.Now().Add(given.Beat)); err != nil {
			return fmt.Errorf("listen to the parent: %w", err)
		}

		var told order
		if err := l.hear.Decode(&told); err != nil {
			return fmt.Errorf("the parent has ended or says nothing any more: %w", err)
		}

		if err := l.say.Encode(l.do(told, given.At)); err != nil {
			return fmt.Errorf("answer the parent: %w", err)
		}

		if told.End {
			return nil
		}
	}
}

func (l *leash) do(told order, at string) reply {
	if told.Replace || told.End {
		l.active.replace(told.Faults)
	}

	if told.End {
		if err := unmount(at); err != nil {
			return reply{Problem: err.Error()}
		}

		if l.log == nil {
			return reply{}
		}

		if err := l.log.Close(); err != nil {
			return reply{Problem: err.Error()}
		}
	}

	answer := reply{Met: l.active.count()}
	if l.log != nil {
		answer.Recorded = l.log.Entries()
	}

	return answer
}

// unmount waits a while for a detach that is about to end.
func unmount(path string) error {
	const (
		tries = 100
		pause = 50 * time.Millisecond
	)

	for range tries {
		err := unix.Unmount(path, 0)
		if !errors.Is(err, unix.EBUSY) {
			return err
		}

		time.Sleep(pause)
	}

	return fmt.Errorf("%s is still in use: %w", path, unix.EBUSY)
}

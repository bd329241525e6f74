package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/leftover"
)

// served hands a configuration to the process that ServeIfAsked makes a driver
// of.
const served = "TOUCHSTONE_TEST_DRIVER"

// encodable is a driver.Config without what only its own process can have.
type encodable struct {
	driver.Config

	WithoutAlso  *struct{} `json:"Also,omitempty"`
	WithoutCrash *struct{} `json:"Crash,omitempty"`
	WithoutOuter *struct{} `json:"Outer,omitempty"`
	WithoutInner *struct{} `json:"Inner,omitempty"`
	WithoutLog   *struct{} `json:"Log,omitempty"`
	// Root is that of the Driver.
	Root string
}

// ServeIfAsked is for the begin of the TestMain of tests that use
// StartProcess: in the process that this starts, it serves and does not return.
func ServeIfAsked() {
	encoded := os.Getenv(served)
	if encoded == "" {
		return
	}

	if err := serve(encoded); err != nil {
		fmt.Fprintln(os.Stderr, "serve:", err)
		os.Exit(1)
	}

	os.Exit(0)
}

func serve(encoded string) (err error) {
	var given encodable
	if err := json.Unmarshal([]byte(encoded), &given); err != nil { //nolint:musttag // only these two processes read it
		return fmt.Errorf("read the configuration: %w", err)
	}

	given.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()

	before, err := leftover.Opened()
	if err != nil {
		return err
	}

	var made *driver.Driver

	leftover.Attribute(given.Root, func() { made, err = driver.New(ctx, given.Config) })

	if err != nil {
		return fmt.Errorf("make the driver: %w", err)
	}

	running := observe(made, given.Root, given.Config)

	leftover.Attribute(given.Root, func() { err = made.Run(ctx) })

	if err != nil {
		return err
	}

	left, err := running.left()
	descriptors, descriptorErr := openedSince(before)

	return errors.Join(err, descriptorErr, writeLeft(given.Root, append(left, descriptors...)))
}

// StartProcess is Start with the driver in a process of its own, so that Kill
// can kill it.
func StartProcess(tb testing.TB, options ...Option) *Driver {
	tb.Helper()

	return startWith(tb, (*Driver).runProcess, options)
}

// StartBounded is StartProcess with the driver as root without any other capabilities than those of
// the names.
func StartBounded(tb testing.TB, capabilities []string, options ...Option) *Driver {
	tb.Helper()

	bounded := func(d *Driver, within testing.TB) { //nolint:thelper // as (*Driver).runProcess
		d.start = func(command *exec.Cmd) error { return child.StartBounded(command, capabilities) }
		d.runProcess(within)
	}

	return startWith(tb, bounded, options)
}

// Kill kills the driver as SIGKILL does, and starts it again. What is to happen
// in between begins once the signal is there: a thread that waits for the answer
// of a served file ends no sooner than it gets one, and does nothing with it.
func (d *Driver) Kill(tb testing.TB, between ...func()) {
	tb.Helper()
	d.kill(between...)
	d.run(d, tb)
}

// PID returns the id of the driver's process (StartProcess).
func (d *Driver) PID() int { return d.pid }

// DieStarting kills the driver, unless it was stopped, starts it with other
// options, and kills it again after that time, wherever it is by then. Restart
// brings it back.
func (d *Driver) DieStarting(tb testing.TB, after time.Duration, options ...Option) {
	tb.Helper()
	d.kill()

	for _, option := range options {
		option(&d.Config)
	}

	command := d.spawn(tb)

	time.Sleep(after) // the moment of death is what the caller has chosen
	require.NoError(tb, command.Process.Kill())
	errtext.Require(tb, child.Wait(tb, command), "killed")

	d.kill = func(...func()) {}
}

// spawn starts the driver's process.
func (d *Driver) spawn(tb testing.TB) *exec.Cmd {
	tb.Helper()

	encoded, err := json.Marshal(encodable{Config: d.Config, Root: d.Root}) //nolint:musttag // only these two processes read it
	require.NoError(tb, err)

	command := exec.Command("/proc/self/exe")
	command.Env = append(os.Environ(), served+"="+string(encoded))
	command.Stderr = tb.Output()

	start := child.Start
	if d.start != nil {
		start = d.start
	}

	require.NoError(tb, start(command))

	return command
}

func (d *Driver) runProcess(tb testing.TB) {
	tb.Helper()

	command := d.spawn(tb)
	d.pid = command.Process.Pid
	end := func(by syscall.Signal, between ...func()) error {
		if err := command.Process.Signal(by); err != nil {
			return fmt.Errorf("end the driver: %w", err)
		}

		for _, happen := range between {
			happen()
		}

		return child.Wait(tb, command)
	}

	d.connect(tb, func() error {
		d.kill = func(...func()) {}

		if err := end(syscall.SIGTERM); err != nil {
			return err
		}

		left, err := readLeft(d.Root)
		d.report(tb, left)

		return err
	})

	d.kill = func(between ...func()) {
		_ = d.Close()
		d.stop = func() {}

		if err := end(syscall.SIGKILL, between...); err == nil {
			tb.Error("the driver had ended before it was killed")
		}
	}
}

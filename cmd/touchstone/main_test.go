package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// asTouchstone makes the test binary be the program, for what only a process
// of its own can show.
const asTouchstone = "TEST_BE_TOUCHSTONE"

func TestMain(m *testing.M) {
	if os.Getenv(asTouchstone) != "" {
		main()
	}

	faults.ServeIfAsked()

	// The drivers that tests start here mount something, too.
	namespace.Enter()
	goleak.VerifyTestMain(m)
}

func touchstone(args ...string) (code int, out, problems string) {
	var stdout, stderr bytes.Buffer

	ctx, cancel := context.WithTimeout(context.Background(), child.Limit)
	defer cancel()

	code = run(ctx, args, &stdout, &stderr)
	if ctx.Err() != nil {
		return -1, stdout.String(), fmt.Sprintf("waited %s for the end of touchstone %q: %s", child.Limit, args, stderr.String())
	}

	return code, stdout.String(), stderr.String()
}

func TestEachOutcomeHasItsExitCode(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	damaged := filepath.Join(dir, "damaged")
	require.NoError(t, os.Mkdir(damaged, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(damaged, "state.jsonl"), []byte("{"), 0o600))

	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))

	for name, test := range map[string]struct {
		args []string
		code int
		says string
	}{
		"help":                 {[]string{"--help"}, 0, "Usage:"},
		"help of a command":    {[]string{"help", "serve"}, 0, "--ready-file"},
		"help of no command":   {[]string{"help", "srve"}, 2, `"srve"`},
		"help of no verb":      {[]string{"help", "ctl", "volume", "crate"}, 2, `"crate"`},
		"version":              {[]string{"version"}, 0, "touchstone "},
		"unknown command":      {[]string{"srve"}, 2, `"srve"`},
		"unknown flag":         {[]string{"--mod=all"}, 2, "--mod"},
		"argument of serve":    {[]string{"serve", "now"}, 2, `"now"`},
		"default is serve":     {[]string{"--mode=both"}, 2, `mode "both"`},
		"unknown state":        {[]string{"state", "fix"}, 2, `"fix"`},
		"verify of nothing":    {[]string{"state", "verify", "--state-dir", filepath.Join(dir, "none")}, 2, "none"},
		"verify of a file":     {[]string{"state", "verify", "--state-dir", file}, 2, "file"},
		"verify of damage":     {[]string{"state", "verify", "--state-dir", damaged}, 1, "state.jsonl"},
		"dump of damage":       {[]string{"state", "dump", "--state-dir", damaged}, 1, "state.jsonl"},
		"serving damage":       {append([]string{"--mode=controller", "--state-dir", damaged}, pathFlags(t)...), 2, "state.jsonl"},
		"endpoint of tcp":      {append(pathFlags(t), "--endpoint=tcp://127.0.0.1:1", "--state-dir", dir), 2, "unix"},
		"verify is as JSON":    {[]string{"state", "verify", "--json", "--state-dir", damaged}, 1, `"findings"`},
		"unknown capability":   {append(pathFlags(t), "--disable-capability=CLONE", "--state-dir", dir), 2, "EXPAND_VOLUME"},
		"proxy to elsewhere":   {append(pathFlags(t), "--proxy-endpoint=192.0.2.1:80"), 2, "192.0.2.1"},
		"log format":           {[]string{"--log-format=xml"}, 2, "xml"},
		"relative kubelet":     {append(pathFlags(t), "--kubelet-dir=x", "--state-dir", dir), 2, "kubelet-dir"},
		"repair what cannot":   {[]string{"state", "repair", "--state-dir", filepath.Join(dir, "none")}, 2, "none"},
		"subcommand help":      {[]string{"serve", "--help"}, 0, "--ready-file"},
		"check of nothing":     {[]string{"check"}, 2, "--all"},
		"check without driver": {[]string{"check", "--all", "--endpoint", "unix://" + filepath.Join(dir, "none.sock")}, 2, "UNAVAILABLE"},
		"health of no driver":  {[]string{"ctl", "volume", "health", "--endpoint", "unix://" + filepath.Join(dir, "none.sock")}, 2, "UNAVAILABLE"},
		"state without a word": {[]string{"state"}, 0, "verify"},
	} {
		// One at a time: serve sets what a process has only once, such as klog's
		// logger.
		t.Run(name, func(t *testing.T) {
			code, out, problems := touchstone(test.args...)
			require.Equal(t, test.code, code, out+problems)
			require.Contains(t, out+problems, test.says)
		})
	}
}

// pathFlags returns flags that keep a driver within a temporary directory.
func pathFlags(t *testing.T) []string {
	t.Helper()

	dir := t.TempDir()

	return []string{"--endpoint", filepath.Join(dir, "csi.sock"), "--pool", "default=" + filepath.Join(dir, "pool")}
}

func TestProcessDrainsAtSIGTERMAndEndsWithZero(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	command, lines := startProcess(t, dir)
	awaitLine(t, lines, "msg=ready")
	require.FileExists(t, filepath.Join(dir, "ready"))

	require.NoError(t, command.Process.Signal(syscall.SIGTERM))
	awaitLine(t, lines, "msg=drained")
	require.NoError(t, child.Wait(t, command))
	require.NoFileExists(t, filepath.Join(dir, "ready"))
	require.NoFileExists(t, filepath.Join(dir, "csi.sock"))

	// Killed outright, its leftovers do not keep the next one from starting.
	command, lines = startProcess(t, dir)
	awaitLine(t, lines, "msg=ready")
	require.NoError(t, command.Process.Kill())
	require.Error(t, child.Wait(t, command), "the exit of a driver that was killed")
	require.FileExists(t, filepath.Join(dir, "csi.sock"))

	command, lines = startProcess(t, dir)
	awaitLine(t, lines, "msg=ready")

	conn, err := net.Dial("unix", filepath.Join(dir, "csi.sock"))
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.NoError(t, command.Process.Signal(syscall.SIGINT))
	require.NoError(t, child.Wait(t, command))
}

// TestStartsRightAfterAKill: a process that is dying is waited for, a live one is not.
func TestStartsRightAfterAKill(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()

	command, lines := startProcess(t, dir)
	awaitLine(t, lines, "msg=ready")

	for range 20 {
		require.NoError(t, command.Process.Kill())

		killed := command
		command, lines = startProcess(t, dir)
		awaitLine(t, lines, "msg=ready")
		require.Error(t, child.Wait(t, killed), "the exit of a driver that was killed")
	}

	second, said := startProcess(t, dir, "--state-dir", t.TempDir(), "--pool", "default="+t.TempDir())
	awaitLine(t, said, fmt.Sprintf(", pid %d", command.Process.Pid))
	require.Error(t, child.Wait(t, second), "the exit of a second driver at the same socket")
	require.NoError(t, command.Process.Signal(syscall.SIGTERM))
	require.NoError(t, child.Wait(t, command))
}

func startProcess(t *testing.T, dir string, args ...string) (*exec.Cmd, <-chan string) {
	t.Helper()

	self, err := os.Executable()
	require.NoError(t, err)

	command := exec.CommandContext(t.Context(), self, flagsIn(dir, args...)...)
	command.Env = append(os.Environ(), asTouchstone+"=1", "TOUCHSTONE_POOL=default="+filepath.Join(dir, "pool"))

	return command, startCommand(t, command)
}

// flagsIn are those of a driver in a directory, but for its pool, and more of the test's.
func flagsIn(dir string, more ...string) []string {
	return append([]string{
		"--mode=controller", "--endpoint", filepath.Join(dir, "csi.sock"),
		"--state-dir", filepath.Join(dir, "state"), "--ready-file", filepath.Join(dir, "ready"),
	}, more...)
}

// startHere starts the driver of startProcess in this process, where a signal is not what a test shows.
func startHere(t *testing.T, dir string, args ...string) (stop func(), lines <-chan string, ended <-chan error) {
	t.Helper()

	config, err := given(t, flagsIn(dir, args...), map[string]string{"TOUCHSTONE_POOL": "default=" + filepath.Join(dir, "pool")}, "")
	require.NoError(t, err)

	said, log := io.Pipe()
	require.NoError(t, complete(config, log))

	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	result, done := make(chan error, 1), make(chan struct{})

	go func() {
		defer close(done)

		result <- runUntil(ctx, config)
		_ = log.Close()
	}()

	t.Cleanup(func() {
		cancel()

		_ = said.Close() // its lines are not read any more
		await.Receive(t, done, "the end of the driver")
	})

	return cancel, linesOf(said), result
}

// startCommand returns what the process says.
func startCommand(t *testing.T, command *exec.Cmd) <-chan string {
	t.Helper()

	problems, err := command.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	t.Cleanup(func() { _ = command.Process.Kill() })

	return linesOf(problems)
}

func linesOf(said io.Reader) <-chan string {
	// More than a test has a driver say while it does not listen.
	lines := make(chan string, 10_000)

	go func() {
		defer close(lines)

		for scanner := bufio.NewScanner(said); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()

	return lines
}

func awaitLine(t *testing.T, lines <-chan string, part string) {
	t.Helper()

	limit := time.After(time.Minute)

	for {
		select {
		case line, ok := <-lines:
			require.True(t, ok, "the process ended without saying %q", part)

			if strings.Contains(line, part) {
				return
			}
		case <-limit:
			require.Fail(t, "never said", part)
		}
	}
}

// awaitLast returns when the process says no more: it has ended.
func awaitLast(t *testing.T, lines <-chan string) {
	t.Helper()
	await.Return(t, func() {
		for range lines {
			continue
		}
	}, "the process to end")
}

// TestEachCommandHasAManualPage, without a date, if it is shown.
func TestEachCommandHasAManualPage(t *testing.T) {
	t.Parallel()

	directory := filepath.Join(t.TempDir(), "man1")
	code, _, problems := touchstone("man", directory)
	require.Zero(t, code, problems)

	for _, name := range []string{"touchstone", "touchstone-serve", "touchstone-ctl-volume-create", "touchstone-state-verify"} {
		require.FileExists(t, filepath.Join(directory, name+".1"))
	}
}

package pool_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// adopterPool makes the test binary another process: after a line of input it opens
// the pool at that path, of which it knows no identity, and prints what it adopts.
const adopterPool = "TOUCHSTONE_TEST_ADOPTER_POOL"

// beAdopter is all of the other process; it returns the exit code.
func beAdopter() int {
	_, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err == nil {
		err = adopt()
	}

	if err != nil {
		fmt.Fprintln(os.Stdout, err)

		return 1
	}

	return 0
}

func adopt() error {
	opened, err := pool.Open("default", os.Getenv(adopterPool), pool.Options{Identity: new("")})
	if err != nil {
		return err
	}

	fmt.Fprintln(os.Stdout, opened.Identity())

	return opened.Close()
}

// adoptOnce opens a pool of which the state has no identity, until it has one.
func adoptOnce(directory string) (run, end func() error, err error) {
	return func() error {
		p, err := pool.Open("once", directory, pool.Options{Identity: new("")})
		if err != nil {
			return err
		}

		id, err := p.Identify()
		if err == nil && id == "" {
			err = errors.New("there is no space for an identity")
		}

		return errors.Join(err, p.Close())
	}, func() error { return nil }, nil
}

// moveOnce moves the identity of a pool to another directory.
func moveOnce(directory string) (run, end func() error, err error) {
	return func() error {
		return pool.MoveIdentity(filepath.Join(directory, "from"), filepath.Join(directory, "to"))
	}, func() error { return nil }, nil
}

// TestADirectoryThatCannotBeMadeIsNoPool, and no pool of another identity.
func TestADirectoryThatCannotBeMadeIsNoPool(t *testing.T) {
	t.Parallel()

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))

	_, err := pool.Open("default", filepath.Join(file, "pool"), pool.Options{})
	require.ErrorIs(t, err, unix.ENOTDIR)
	require.NotErrorIs(t, err, pool.ErrIdentity, "want: the cause is named")
}

// TestProcessesAgreeOnAnIdentity: two processes find no identity in a shared pool. One
// stops before it has given its own a name, and the other adopts one meanwhile.
func TestProcessesAgreeOnAnIdentity(t *testing.T) {
	namespace.NeedRoot(t)

	served := faults.Serve(t)
	path := filepath.Join(served.Path, "pool")

	command := exec.CommandContext(t.Context(), "/proc/self/exe")
	command.Env = append(os.Environ(), adopterPool+"="+path)
	command.Stderr = t.Output()

	input, err := command.StdinPipe()
	require.NoError(t, err)
	output, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())

	adopted := make(chan string, 1)

	go func() {
		line, _ := bufio.NewReader(output).ReadString('\n')
		adopted <- strings.TrimSpace(line)
	}()

	served.Inject(t, faults.Fault{Ops: faults.Syncs, Process: command.Process.Pid, Hang: true})

	_, err = input.Write([]byte("\n"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return served.Met(t) > 0 }, await.Limit, time.Millisecond,
		"waited for the other process to write an identity")

	first, err := pool.Open("default", path, pool.Options{Identity: new("")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, first.Close()) })
	require.NotEmpty(t, first.Identity(), "the identity of a new pool")

	served.Release(t)
	require.Equal(t, first.Identity(), await.Receive(t, adopted, "the identity that the other process adopts"),
		"the identity that the other process adopts")
	require.NoError(t, command.Wait())

	kept, err := pool.ReadIdentity(path)
	require.NoError(t, err)
	require.Equal(t, first.Identity(), kept, "the identity that is in the pool")

	left, err := filepath.Glob(filepath.Join(path, ".pool.json.*"))
	require.NoError(t, err)
	require.Empty(t, left, "files of identities that are not used")
}

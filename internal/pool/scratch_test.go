package pool_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

const (
	waitFor   = 10 * time.Second
	pollEvery = 10 * time.Millisecond

	// copierPool makes the test binary another process that copies: it makes
	// what copierSource names be copierTarget, and waits before Commit until it
	// is killed or its input ends.
	copierPool   = "TOUCHSTONE_TEST_COPIER_POOL"
	copierSource = "TOUCHSTONE_TEST_COPIER_SOURCE"
	copierTarget = "TOUCHSTONE_TEST_COPIER_TARGET"
	cut          = "cut"
)

// beCopier is all of the other process; it returns how that shall exit.
func beCopier() int {
	if err := copyUntilTold(context.Background()); err != nil {
		fmt.Fprintln(os.Stdout, err)

		return 1
	}

	return 0
}

func copyUntilTold(ctx context.Context) error {
	place, err := pool.Open("other", os.Getenv(copierPool), pool.Options{})
	if err != nil {
		return err
	}

	backing, id, _ := strings.Cut(os.Getenv(copierSource), " ")
	source := pool.Object{ID: id, Backing: volume.Backing(backing)}
	target := pool.Object{ID: os.Getenv(copierTarget), Backing: source.Backing, Snapshot: true}

	making, err := place.NewCopy(place, source, target, pool.CopyOptions{})
	if err != nil {
		return err
	}

	if err := making.CopyData(ctx); err != nil {
		return err
	}

	fmt.Fprintln(os.Stdout, cut)

	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}

	_, err = making.Commit(ctx)

	return err
}

// copier is another process that copies.
type copier struct {
	*exec.Cmd

	input io.Writer
}

// proceed lets it commit.
func (c copier) proceed(t *testing.T) {
	t.Helper()

	_, err := io.WriteString(c.input, "\n")
	require.NoError(t, err)
}

// startCopier starts another process that copies, as that user.
func startCopier(t *testing.T, place *pool.Pool, source, target pool.Object, user uint32) (copier, *bufio.Reader) {
	t.Helper()

	command := child.Command(t, "/proc/self/exe")
	command.Env = append(os.Environ(), copierPool+"="+place.Path(), copierSource+"="+string(source.Backing)+" "+source.ID,
		copierTarget+"="+target.ID)
	command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}

	input, err := command.StdinPipe()
	require.NoError(t, err)
	output, err := command.StdoutPipe()
	require.NoError(t, err)
	command.Stderr = command.Stdout
	require.NoError(t, command.Start())

	return copier{Cmd: command, input: input}, bufio.NewReader(output)
}

func TestLeftoversOfACrashAreCleared(t *testing.T) {
	namespace.NeedRoot(t)

	place := openPool(t, t.TempDir())

	for name, source := range map[string]pool.Object{"image": newImage(t, place, mebi), "directory": newDirectory(t, place, 3, kibi)} {
		t.Run(name, func(t *testing.T) {
			target := snapshotOf(t, source)
			copier, output := startCopier(t, place, source, target, 0)

			line, err := output.ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, cut+"\n", line)

			// Its process lives: its scratch object is not removed.
			made := scratchOf(t, place)
			require.NotEmpty(t, made, "want: the scratch object of a living process stays")
			require.NoError(t, place.RemoveStaleScratch(t.Context()))
			require.Equal(t, made, scratchOf(t, place))

			_, err = place.NewCopy(place, source, target, pool.CopyOptions{})
			require.ErrorIs(t, err, pool.ErrInProgress)
			require.Equal(t, made, scratchOf(t, place))

			require.NoError(t, copier.Process.Kill())
			require.Error(t, copier.Wait(), "the exit of a copier that was killed")
			require.Equal(t, made, scratchOf(t, place))
			require.NoError(t, place.RemoveStaleScratch(t.Context()))
			nothingHalfMade(t, place, target)
		})
	}
}

// TestCopyReplacesLeftovers: it is a retry before the leftovers are cleared.
func TestCopyReplacesLeftovers(t *testing.T) {
	t.Parallel()

	place := openPool(t, t.TempDir())

	for _, source := range []pool.Object{newImage(t, place, mebi), newDirectory(t, place, 3, kibi)} {
		target := snapshotOf(t, source)
		leftover := filepath.Join(place.Path(), "scratch", target.ID)

		require.NoError(t, os.WriteFile(leftover+layout.ImageSuffix, randomBytes(2*mebi), 0o600))
		require.NoError(t, os.MkdirAll(filepath.Join(leftover, "half", "made"), 0o700))
		copied(t, place, place, source, target, pool.CopyOptions{})
		sameContent(t, place, source, place, target)
		require.Empty(t, scratchOf(t, place), "want: no scratch file is left")
	}
}

// TestImageWithAScratchNameIsRecovered after what a power failure may leave on btrfs: a renamed
// image is in place and still in scratch. Its content stays.
func TestImageWithAScratchNameIsRecovered(t *testing.T) {
	t.Parallel()

	place := openPool(t, t.TempDir())
	scratch := filepath.Join(place.Path(), "scratch")
	source := newImage(t, place, mebi)

	for _, made := range []pool.Object{snapshotOf(t, source), imageOf(newID(t))} {
		copied(t, place, place, source, made, pool.CopyOptions{})

		want := checksum(t, placeOf(place, made))
		keepName := func() {
			require.NoError(t, os.Link(placeOf(place, made), filepath.Join(scratch, made.ID+layout.ImageSuffix)))
		}

		keepName()
		require.NoError(t, place.RemoveStaleScratch(t.Context()))
		require.Empty(t, scratchOf(t, place), "want: no scratch file is left")
		require.Equal(t, want, checksum(t, placeOf(place, made)), made)

		// A retry that comes before the removal.
		keepName()
		copied(t, place, place, source, made, pool.CopyOptions{})
		require.Empty(t, scratchOf(t, place), "want: no scratch file is left")
		require.Equal(t, want, checksum(t, placeOf(place, made)), made)
	}
}

// TestDirectoryWithoutALockIsRecovered after a power failure.
func TestDirectoryWithoutALockIsRecovered(t *testing.T) {
	t.Parallel()

	place := openPool(t, t.TempDir())
	require.NoError(t, os.MkdirAll(filepath.Join(place.Path(), "scratch", newID(t), "half", "made"), 0o700))
	require.NoError(t, place.RemoveStaleScratch(t.Context()))
	require.Empty(t, scratchOf(t, place), "want: no scratch file is left")
}

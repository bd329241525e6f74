package fsck_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/poolset"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

const (
	onceID = "01890000-0000-7000-8002-000000000001"
	// onceLoop is beyond the loop devices of the machine and of other tests.
	onceLoop = 830_000
)

func TestMain(m *testing.M) {
	syscallfault.ServeIfAsked(onceOperations())
	os.Exit(namespace.Main(m))
}

var (
	errNoVerdict = errors.New("the check could not be made")
	errDamaged   = errors.New("a clean filesystem is not found clean")
)

// onceKind is a check of a clean filesystem.
type onceKind struct {
	how string
	// isKnown means that it was checked before.
	isKnown bool
	// ignored matches calls beside those of the state, of the copies and of sysfs files' sizes.
	ignored string
}

var onceKinds = map[string]onceKind{
	"offline": {how: fsck.HowOffline, ignored: "^$"}, "online": {how: fsck.HowOnline, ignored: "^$"},
	// What the check cannot read its tool reads.
	"again": {how: fsck.HowOffline, isKnown: true, ignored: "^pread64 pool/images"},
}

// onceChecker is a checker of one volume in a directory.
type onceChecker struct {
	*fsck.Checker

	kind  onceKind
	pools *pool.Set
	store *state.Store
	// wrong is the verdict of a clean filesystem that is not that.
	wrong error
}

func onceOperations() map[string]syscallfault.Operation {
	all := map[string]syscallfault.Operation{}

	for name, kind := range onceKinds {
		all[name] = func(directory string) (run, end func() error, err error) {
			c := &onceChecker{kind: kind}

			return c.run, c.end, c.begin(context.Background(), directory)
		}
	}

	return all
}

func (c *onceChecker) begin(ctx context.Context, directory string) error {
	log, used := slog.New(slog.DiscardHandler), &node{}
	if c.kind.how == fsck.HowOnline {
		used.path, used.staged = "/staged", &staged.Volume{
			VolumeID: onceID, StagingPath: "/staged", Capability: volume.Capability{Mode: "SINGLE_NODE_WRITER", FSType: filesystem.Ext4},
			Parameters: volume.Parameters{Pool: "first", Backing: volume.BackingImage},
		}
	}

	var err error
	if c.pools, err = poolset.Open(map[string]string{"first": filepath.Join(directory, "pool")}); err != nil {
		return err
	}

	c.store = state.New(filepath.Join(directory, "state"), state.Options{Log: log, LazyFlush: time.Hour})
	c.Checker = newChecker(used, fsck.Config{
		Results: fsck.NewResults(fsck.NewRecords(c.store), nil, log), Pools: c.pools,
		Loops: loop.NewLoops(loop.LoopsOptions{First: onceLoop}),
	})

	if err := c.store.Open(ctx); err != nil {
		return err
	}

	c.Load()

	if c.kind.isKnown {
		return c.run()
	}

	return nil
}

// run checks the volume. A check without a verdict has failed.
func (c *onceChecker) run() error {
	found, err := c.Check(context.Background(), onceID, c.kind.how)

	switch {
	case err != nil:
		return err
	case found.Verdict == fsck.VerdictFailed:
		return fmt.Errorf("%w: %s", errNoVerdict, found.Detail)
	case found.Verdict != fsck.VerdictClean:
		c.wrong = fmt.Errorf("%w: %+v", errDamaged, found)
	}

	return nil
}

func (c *onceChecker) end() error { return errors.Join(c.wrong, c.store.Close(), c.pools.Close()) }

// TestEachCallFailsOnce has each system call of a check fail once, but those of the tools: the check fails,
// and does not find damage.
func TestEachCallFailsOnce(t *testing.T) {
	namespace.NeedRoot(t)

	for name, kind := range onceKinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			syscallfault.EachCallFailsOnce(t, &syscallfault.Case{
				Causes: true, Operation: name, Mounts: true, Lossy: []string{"*", "*/*", "*/*/*"}, Reported: []string{""},
				Except: regexp.MustCompile("state/|pool/scratch|^fstat(at)? /(sys|dev)/|" + kind.ignored),
				Prepare: func(t *testing.T, directory string) {
					t.Helper()

					pools, err := poolset.Open(map[string]string{"first": filepath.Join(directory, "pool")})
					require.NoError(t, err)

					defer pools.Close()

					stored, err := pools.Get("first")
					require.NoError(t, err)
					require.NoError(t, stored.Images.Create(onceID, 16<<20, false))

					image := stored.ObjectPath(pool.Object{ID: onceID, Backing: volume.BackingImage})
					output, err := child.Command(t, "mkfs.ext4", "-q", "-F", "-b", "1024", image).CombinedOutput()
					require.NoError(t, err, string(output))
				},
				Verify: func(*testing.T, string) {},
			})
		})
	}
}

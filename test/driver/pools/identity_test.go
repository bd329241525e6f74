package pools_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestLateIdentityOfAPoolIsRecorded: a pool whose identity cannot be made, or recorded, when it is
// opened is served all the same. Once that is possible its identity is recorded without another
// opening, so that another directory at its path is refused.
func TestLateIdentityOfAPoolIsRecorded(t *testing.T) {
	namespace.NeedRoot(t)

	for name, test := range map[string]struct {
		// join starts a driver whose pool "late" has no identity in the state, and returns what lets it have
		// one.
		join func(t *testing.T, filesystem string) (*harness.Driver, func())
	}{
		"state is read-only": {func(t *testing.T, filesystem string) (*harness.Driver, func()) {
			t.Helper()
			require.NoError(t, unix.Mount("", filesystem, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))

			space := harness.NewStateSpace(t)
			d := harness.Start(t, harness.Relists, space.Option, harness.PoolAt("late", filepath.Join(filesystem, "pool")))
			unreachablePool(t, d, "late")
			space.Fill(t, d)
			require.NoError(t, unix.Mount("", filesystem, "", unix.MS_REMOUNT, ""))

			return d, func() { space.Free(t) }
		}},
		"pool is full": {func(t *testing.T, filesystem string) (*harness.Driver, func()) {
			t.Helper()

			ballast := filepath.Join(filesystem, "ballast")
			require.ErrorIs(t, os.WriteFile(ballast, make([]byte, 2*harness.MiB), 0o600), unix.ENOSPC)

			d := harness.Start(t, harness.Relists, harness.PoolAt("late", filepath.Join(filesystem, "pool")))

			return d, func() { require.NoError(t, os.Remove(ballast)) }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			filesystem := t.TempDir()
			require.NoError(t, unix.Mount("tmpfs", filesystem, "tmpfs", 0, "size=1m"))
			t.Cleanup(func() { require.NoError(t, unix.Unmount(filesystem, unix.MNT_DETACH)) })

			d, repair := test.join(t, filesystem)
			servedAgain(t, d, "late")
			repair()
			harness.AwaitStorage(t, d, "")

			path := d.Config.Pools["late"]

			require.Eventually(t, func() bool {
				id, err := pool.ReadIdentity(path)
				require.NoError(t, err)

				journal, err := os.ReadFile(filepath.Join(d.Config.StateDir, "state.jsonl"))
				require.NoError(t, err)

				return id != "" && strings.Contains(string(journal), id)
			}, poolLimit, 20*time.Millisecond, "the identity of the pool is not in the state")

			_, err := d.CreateVolume(t.Context(), inPool("after", "default"))
			require.NoError(t, err)

			d.Stop()
			require.NoError(t, os.Rename(path, path+".lost"))
			d.Restart(t)
			unreachablePool(t, d, "not the one in the state")

			d.Stop()
			require.NoError(t, os.Rename(path+".lost", path))
			d.Restart(t)
			servedAgain(t, d, "late")
		})
	}
}

package remount_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/remount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

func TestMain(m *testing.M) {
	syscallfault.ServeIfAsked(map[string]syscallfault.Operation{"publish": publishOnce})
	os.Exit(namespace.Main(m))
}

// publishOnce makes the persistent mount of a volume at a directory's "kubelet/target".
func publishOnce(directory string) (run, end func() error, err error) {
	dirs, err := mount.NewAllowedDirs(filepath.Join(directory, "kubelet"))
	if err != nil {
		return nil, nil, err
	}

	log := slog.New(slog.DiscardHandler)
	store := state.New(filepath.Join(directory, "state"), state.Options{Log: log})
	n := &node{records: staged.NewVolumes(store), dir: filepath.Join(directory, "kubelet"), failed: map[string]error{}}
	n.Mounts = remount.New(remount.Config{
		Volumes: n.records, Dirs: dirs, Prober: n, Log: log,
		Lifecycle: lifecycle{
			isPublished: func(staged.Publication) (bool, error) { return false, nil },
			stage:       func(*staged.Volume) error { return nil },
			publish:     func(string, staged.Publication) error { return nil },
		},
		Do: func(ctx context.Context, _, _ string, do func(context.Context) error) error {
			return do(ctx)
		},
	})

	err = store.Open(context.Background())
	if err == nil {
		v := n.volume(first, "target")
		err = n.records.Put(context.Background(), v.WithPersistent(v.Publications[0]).Unused())
	}

	return func() error {
		n.PublishAll(context.Background(), "default")

		return n.failed[first]
	}, store.Close, err
}

// TestEachCallFailsOnce has each system call of a mount that is made again fail once: the volume has failed,
// and is mounted the next time. Whether something is mounted there can be read in another way.
func TestEachCallFailsOnce(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	syscallfault.EachCallFailsOnce(t, &syscallfault.Case{
		Causes: true, Operation: "publish", Reported: []string{""}, Lossy: []string{"kubelet", "kubelet/*"}, Except: regexp.MustCompile("state/|^statx"),
		Prepare: func(t *testing.T, directory string) {
			t.Helper()
			require.NoError(t, os.MkdirAll(filepath.Join(directory, "kubelet", "target"), 0o700))
		},
		Verify: func(*testing.T, string) {},
	})
}

// TestAMountIsLeftToThePublication, which refuses it unless it is the volume's.
func TestAMountIsLeftToThePublication(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	n := newNode(t)
	n.put(t, first, "target")
	n.keep(t, first)

	target := filepath.Join(n.dir, "target")
	require.NoError(t, os.Mkdir(target, 0o700))
	require.NoError(t, unix.Mount("none", target, "tmpfs", 0, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(target, 0)) })
	require.NoError(t, os.WriteFile(filepath.Join(target, "file"), nil, 0o600))

	n.PublishAll(t.Context(), "default")
	require.Equal(t, []string{target}, n.published)
	require.Empty(t, n.failed, "want: the files of a mount are not hidden")
}

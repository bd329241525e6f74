package remount_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/persistent"
	"github.com/touchstone-csi/touchstone/pkg/node/remount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

const (
	first  = "01890000-0000-7000-8000-000000000001"
	second = "01890000-0000-7000-8000-000000000002"
)

// node stands in for the service and the prober.
type node struct {
	*remount.Mounts

	records *staged.Records[*staged.Volume]
	dir     string
	// published are the target paths in the order of the publications, failed the volumes with a cause.
	published []string
	failed    map[string]error
	// refused is returned by stagings of its volume.
	refused map[string]error
	// unknown and unpublished are returned by IsPublished and Publish.
	unknown, unpublished error
	// waits, if not nil, is called before an operation.
	waits func()
	// ended is what the last operation returned, and probed are the volumes that were probed.
	ended  error
	probed []string
	// closeStore lets no more records be stored.
	closeStore func()
}

func newNode(t *testing.T) *node {
	t.Helper()

	store := state.New(t.TempDir(), state.Options{Log: slog.New(slog.DiscardHandler)})
	n := &node{records: staged.NewVolumes(store), dir: t.TempDir(), failed: map[string]error{}, refused: map[string]error{}}

	require.NoError(t, store.Open(t.Context()))

	n.closeStore = sync.OnceFunc(func() { require.NoError(t, store.Close()) })
	t.Cleanup(n.closeStore)

	dirs, err := mount.NewAllowedDirs(n.dir)
	require.NoError(t, err)

	n.Mounts = remount.New(remount.Config{
		Volumes: n.records, Dirs: dirs, Prober: n, Log: slog.New(slog.DiscardHandler),
		Lifecycle: lifecycle{
			isPublished: func(p staged.Publication) (bool, error) { return filepath.Base(p.TargetPath) == "mounted", n.unknown },
			stage: func(v *staged.Volume) error {
				require.Empty(t, v.Publications, "want: the staging is the volume's first")

				return n.refused[v.VolumeID]
			},
			publish: func(stagingPath string, p staged.Publication) error {
				require.Equal(t, n.staging(), stagingPath, "want: it is staged where it was")
				n.published = append(n.published, p.TargetPath)

				return n.unpublished
			},
		},
		Do: func(ctx context.Context, _, _ string, do func(context.Context) error) error {
			if n.waits != nil {
				n.waits()
			}

			n.ended = do(ctx)

			return n.ended
		},
	})

	return n
}

// lifecycle stands in for the service.
type lifecycle struct {
	isPublished func(at staged.Publication) (bool, error)
	stage       func(v *staged.Volume) error
	publish     func(stagingPath string, wanted staged.Publication) error
}

func (l lifecycle) IsPublished(_ *staged.Volume, at staged.Publication) (bool, error) {
	return l.isPublished(at)
}

func (l lifecycle) Stage(_ context.Context, v *staged.Volume) error { return l.stage(v) }

func (l lifecycle) Publish(_ context.Context, _, stagingPath string, wanted staged.Publication) error {
	return l.publish(stagingPath, wanted)
}

func (n *node) end(ctx context.Context, id, target string) error {
	return remount.End(ctx, n.records, n, id, target)
}

func (n *node) StagingFailed(v *staged.Volume, cause error) { n.failed[v.VolumeID] = cause }
func (n *node) StagedOrPublished(id string)                 { delete(n.failed, id) }
func (n *node) NotWanted(id string)                         { delete(n.failed, id) }
func (n *node) ProbeAfterOperation(id string)               { n.probed = append(n.probed, id) }

func (n *node) staging() string { return filepath.Join(n.dir, "own", "staging") }

// volume returns one that is published at the paths.
func (n *node) volume(id string, names ...string) *staged.Volume {
	v := &staged.Volume{
		VolumeID: id, StagingPath: n.staging(), Capability: volume.Capability{FSType: "ext4", Mode: "SINGLE_NODE_WRITER"},
		Parameters: volume.Parameters{
			Pool: "default", Backing: volume.BackingImage, FSType: "ext4", Provisioning: volume.Thin, BlockSize: volume.DefaultBlockSize,
		},
	}
	for _, name := range names {
		v.Publications = append(v.Publications, staged.Publication{TargetPath: filepath.Join(n.dir, name), Capability: v.Capability})
	}

	return v
}

// put records a volume that is published at the paths.
func (n *node) put(t *testing.T, id string, names ...string) {
	t.Helper()
	require.NoError(t, n.records.Put(t.Context(), n.volume(id, names...)))
}

// keep makes the publications of a volume persistent, which is not in use then.
func (n *node) keep(t *testing.T, id string) {
	t.Helper()

	v, _ := n.records.Get(id)
	for _, each := range v.Publications {
		require.NoError(t, n.Set(t.Context(), persistent.Request{VolumeID: id, TargetPath: each.TargetPath, Persistent: true}))
	}

	v, _ = n.records.Get(id)
	require.NoError(t, n.records.Put(t.Context(), v.Unused()))
}

// TestSetNeedsAPublication, and may be repeated.
func TestSetNeedsAPublication(t *testing.T) {
	t.Parallel()

	n := newNode(t)
	n.put(t, first, "a")
	request := persistent.Request{VolumeID: first, TargetPath: filepath.Join(n.dir, "a"), Persistent: true}
	elsewhere, unknown, ended := request, request, request
	elsewhere.TargetPath, unknown.VolumeID, ended.Persistent = "/b", second, false

	for name, each := range map[string]persistent.Request{"another path": elsewhere, "another volume": unknown} {
		require.ErrorIs(t, n.Set(t.Context(), each), errdefs.ErrFailedPrecondition, name)
		each.Persistent = false
		require.NoError(t, n.Set(t.Context(), each), name)
	}

	for _, each := range []persistent.Request{request, request, ended, ended} {
		require.NoError(t, n.Set(t.Context(), each))

		v, _ := n.records.Get(first)
		require.Equal(t, each.Persistent, v.IsPersistentAt(each.TargetPath))
		require.Len(t, v.Publications, 1, "want: the volume stays published")
	}
}

// TestSetReportsThatNothingIsStored: what was made persistent stays so.
func TestSetReportsThatNothingIsStored(t *testing.T) {
	t.Parallel()

	n := newNode(t)
	n.put(t, first, "a", "b")
	kept := persistent.Request{VolumeID: first, TargetPath: filepath.Join(n.dir, "a"), Persistent: true}
	other, ended := kept, kept
	other.TargetPath, ended.Persistent = filepath.Join(n.dir, "b"), false

	require.NoError(t, n.Set(t.Context(), kept))
	n.closeStore()
	require.Error(t, n.Set(t.Context(), other), "want: what is not stored is not persistent")
	require.Error(t, n.Set(t.Context(), ended), "want: the next start would publish it")
	require.Error(t, n.end(t.Context(), first, kept.TargetPath), "want: the next start would publish it")
}

// TestPublishAll makes the mounts that are missing, in the order of their paths, and one that fails keeps no
// other from being made.
func TestPublishAll(t *testing.T) {
	t.Parallel()

	n := newNode(t)
	inner, broken := filepath.Join(n.dir, "outer", "inner"), errors.New("broken")

	n.put(t, first, "outer/inner", "mounted")
	n.put(t, second, "full")
	n.keep(t, first)
	n.keep(t, second)
	require.NoError(t, n.end(t.Context(), first, filepath.Join(n.dir, "none")))
	require.NoError(t, os.MkdirAll(filepath.Join(n.dir, "full", "file"), 0o700))

	n.PublishAll(t.Context(), "another")
	require.Empty(t, n.published, "want: volumes of another pool wait for it")

	n.PublishAll(t.Context(), "default")
	require.Equal(t, []string{inner}, n.published)
	require.DirExists(t, filepath.Dir(inner), "want: a missing parent is made")
	require.ErrorIs(t, n.failed[second], errdefs.ErrFailedPrecondition, "want: files are not hidden")
	require.NoError(t, n.failed[first])
	require.DirExists(t, filepath.Dir(n.staging()), "want: a missing parent is made")
	require.Equal(t, []string{second, first, first}, n.probed, "want: each volume is probed")

	n.refused[first] = broken
	n.PublishAll(t.Context(), "default")
	require.ErrorIs(t, n.failed[first], broken, "want: a failure is reported")
	delete(n.refused, first)
	n.PublishAll(t.Context(), "default")
	require.NoError(t, n.failed[first], "want: a volume that is published has no failure")

	n.published, n.refused[first] = nil, broken
	n.PublishAll(t.Context(), "default")

	require.NoError(t, n.end(t.Context(), first, inner))
	require.NoError(t, n.failed[first], "want: a volume that is not wanted has no failure")
	delete(n.refused, first)
	n.PublishAll(t.Context(), "default")
	require.Empty(t, n.published, "want: a volume that was unpublished stays so")
}

// TestPublishAllReportsEachFailure, and none of a volume that is not wanted any more when its turn comes.
func TestPublishAllReportsEachFailure(t *testing.T) {
	t.Parallel()

	broken := errors.New("broken")

	for name, test := range map[string]struct {
		fail func(n *node)
		want error
	}{
		"it is unknown whether it is mounted": {func(n *node) { n.unknown = broken }, broken},
		"it cannot be published":              {func(n *node) { n.unpublished = broken }, broken},
		"a file is where its parent belongs": {func(n *node) {
			require.NoError(t, os.WriteFile(filepath.Join(n.dir, "outer"), nil, 0o600))
		}, mount.ErrWrongType},
		"a file is where the parent of its staging path belongs": {func(n *node) {
			require.NoError(t, os.WriteFile(filepath.Dir(n.staging()), nil, 0o600))
		}, mount.ErrWrongType},
		"it is forgotten": {func(n *node) { n.waits = func() { require.NoError(t, n.records.DeleteLazily(first)) } }, nil},
		"it is unpublished": {func(n *node) {
			n.waits = func() { require.NoError(t, n.end(t.Context(), first, filepath.Join(n.dir, "outer", "inner"))) }
		}, nil},
	} {
		n := newNode(t)
		n.put(t, first, "outer/inner")
		n.keep(t, first)
		test.fail(n)

		n.PublishAll(t.Context(), "default")

		if test.want == nil {
			require.Empty(t, n.failed, "want: nothing has failed: %s", name)
			require.Empty(t, n.published, "want: it is not mounted: %s", name)
		} else {
			require.ErrorIs(t, n.failed[first], test.want, name)
			require.ErrorIs(t, n.ended, test.want, "want: the operation has failed: %s", name)
		}
	}
}

// TestPublishAllInOrder: a volume that is mounted in another one follows it.
func TestPublishAllInOrder(t *testing.T) {
	t.Parallel()

	n := newNode(t)
	n.put(t, first, "outer/inner")
	n.put(t, second, "outer")
	n.keep(t, first)
	n.keep(t, second)

	n.PublishAll(t.Context(), "default")
	require.Equal(t, []string{filepath.Join(n.dir, "outer"), filepath.Join(n.dir, "outer", "inner")}, n.published)
	require.Empty(t, n.failed, "want: both are published")
}

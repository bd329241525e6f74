package node_test

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/operation"
)

// monitored runs the monitor until the test, or the function that it returns, ends it.
func (n *onceNode) monitored(t *testing.T) (end func()) {
	t.Helper()

	ctx, stop := context.WithCancel(t.Context())

	var running sync.WaitGroup

	running.Go(func() { n.Prober().Monitor().Run(ctx) })

	end = func() {
		stop()
		running.Wait()
	}
	t.Cleanup(end)
	require.NoError(t, n.Prober().Monitor().AwaitRelist(t.Context()))

	return end
}

// TestCallsHaveTheVolumeProbed, so that its condition is that of after the call. Each has a monitor of its
// own, which probes a volume again some time after a call.
func TestCallsHaveTheVolumeProbed(t *testing.T) {
	for kind, calls := range map[string][]string{
		"image":  {"stage", "publish", "expand", "unpublish", "truncated", "forgotten", "unstage", "deleted"},
		"inline": {"publish", "unpublish"},
	} {
		t.Run(kind, func(t *testing.T) {
			n := newNode(t, kind)
			id := n.kind.id()

			for _, call := range calls {
				require.NoError(t, n.restart(t.Context()))

				end, monitor := n.monitored(t), n.Prober().Monitor()
				began := time.Now()

				require.NoError(t, map[string]func(ctx context.Context) error{
					"stage": n.stage, "publish": n.publish, "unpublish": n.unpublish, "unstage": n.unstage,
					"expand": func(ctx context.Context) error {
						_, err := n.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: n.in("kubelet/staging")})

						return err
					},
					"truncated": func(context.Context) error { n.Local().Truncated(id); return nil },
					"forgotten": func(context.Context) error { return n.Checker().Forget(id) },
					"deleted": func(context.Context) error {
						monitor.Set(id, health.Observation{}, began)
						n.Local().Deleted(id)

						return nil
					},
				}[call](t.Context()), call)

				if _, _, used := n.Used().Get(id); used {
					bounded, cancel := context.WithTimeout(t.Context(), 30*time.Second)
					_, err := monitor.Await(bounded, id, began)
					require.NoError(t, err, "want: it is probed after %s", call)
					cancel()
				} else {
					_, known := monitor.Get(id)
					require.False(t, known, "want: nothing is known of it after %s", call)
				}

				end()
			}
		})
	}
}

// TestAFailedStagingIsACondition until the staging succeeds.
func TestAFailedStagingIsACondition(t *testing.T) {
	n := newNode(t, "image")
	require.NoError(t, n.close())

	var failing operation.Point

	n.point = func(_ context.Context, point operation.Point, _ ...string) error {
		if point == failing {
			return errdefs.New(errdefs.ErrFailedPrecondition, "on command")
		}

		return nil
	}
	require.NoError(t, n.open(t.Context()))
	n.monitored(t)

	image := n.in("pool/images/" + n.kind.id() + ".img")
	healthy := func(want bool) func() bool {
		return func() bool {
			got, err := n.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: n.kind.id()})

			return err == nil && want == (len(got.GetVolumeHealth().GetHealthStatuses()) == 0)
		}
	}

	for name, change := range map[string][2]func() error{
		"its image is missing": {func() error { return os.Rename(image, image+".aside") }, func() error { return os.Rename(image+".aside", image) }},
		"it fails at a point":  {func() error { failing = operation.StagingRecorded; return nil }, func() error { failing = ""; return nil }},
	} {
		require.NoError(t, change[0]())
		require.Error(t, n.stage(t.Context()), "want: the staging fails, %s", name)
		require.Eventually(t, healthy(false), 30*time.Second, time.Millisecond, "want: a condition, %s", name)
		require.NoError(t, change[1]())
		require.NoError(t, n.stage(t.Context()), name)
		require.Eventually(t, healthy(true), 30*time.Second, time.Millisecond, "want: no condition after the staging, %s", name)
		require.NoError(t, n.unstage(t.Context()), name)
	}
}

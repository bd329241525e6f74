package crash_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestCrashEphemeral kills the driver while it makes an inline ephemeral volume
// or takes one away. Afterwards it is there as a whole or not at all, and the
// CO's next call ends as if nothing had been.
func TestCrashEphemeral(t *testing.T) {
	namespace.NeedRoot(t)

	s := newSite(t, build(t))
	random := rand.New(chacha(number(t, "seed"), 0))
	lasted := 10 * time.Millisecond

	t.Cleanup(func() {
		if t.Failed() {
			s.lastWords(t)
		}

		s.sweep(t)
	})

	for round := range int(number(t, "kills")) {
		attributes := map[string]string{"size": "16Mi"}
		if round%4 == 3 {
			attributes["backing"] = "directory"
		}

		pod := &inlineVolume{site: s, attributes: attributes, target: filepath.Join(s.kubelet(), "pods", "pod", "mount")}

		p := s.start(t, through)
		require.NoError(t, p.waitReady(t.Context()))
		pod.isGone(t, "after the last round")

		ended := make(chan time.Duration)

		go func() {
			began := time.Now()
			// Whether they came to an end is what the kill decides.
			if pod.publish(t.Context(), p) == nil && round%2 == 0 {
				_ = pod.unpublish(t.Context(), p)
			}
			ended <- time.Since(began)
		}()

		timer := time.NewTimer(upTo(random, time.Duration(beyond*float64(lasted))))
		select {
		case <-timer.C:
			p.kill(t)
			await.Receive(t, ended, "the calls to return after their driver was killed")
		case took := <-ended:
			lasted = max(lasted, took)

			p.kill(t)
		}

		p = s.start(t, through)
		require.NoError(t, p.waitReady(t.Context()))
		require.LessOrEqual(t, len(pod.contents(t)), 1, "want: the pod has one volume at most")

		if random.IntN(2) == 0 {
			require.NoError(t, pod.publish(t.Context(), p))
			require.NoError(t, os.WriteFile(filepath.Join(pod.target, "data"), []byte("x"), 0o600))
		}

		require.NoError(t, pod.unpublish(t.Context(), p))
		pod.isGone(t, "after its end")
		p.terminate(t)
	}

	s.verifyState(t)
	require.Empty(t, s.panics(t), "want: the driver does not panic")
}

func through(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	return invoke(ctx, method, request, reply, conn, options...)
}

// inlineVolume is one pod's inline volume, by the same name in every round.
type inlineVolume struct {
	site       *site
	attributes map[string]string
	target     string
}

const inlineID = "csi-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func (v *inlineVolume) publish(ctx context.Context, p *process) error {
	attached := map[string]string{"csi.storage.k8s.io/ephemeral": "true"}
	maps.Copy(attached, v.attributes)

	return p.Publish(ctx, &csiclient.Publication{
		VolumeID: inlineID, VolumeContext: attached, TargetPath: v.target,
		Capability: csiclient.MountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "ext4"),
	})
}

func (v *inlineVolume) unpublish(ctx context.Context, p *process) error {
	return p.Unpublish(ctx, &csiclient.Publication{VolumeID: inlineID, TargetPath: v.target})
}

func (v *inlineVolume) contents(t *testing.T) []string {
	t.Helper()

	room := filepath.Join(v.site.pool(), "ephemeral")

	return append(entries(t, filepath.Join(room, "images")), entries(t, filepath.Join(room, "directories"))...)
}

func (v *inlineVolume) isGone(t *testing.T, when string) {
	t.Helper()
	require.Empty(t, v.contents(t), when)
	require.Empty(t, v.site.devices(t), when)
	require.NoDirExists(t, v.target, when)
}

package requests_test

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/awaitcall"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// refused returns all generated requests that are invalid.
func (f *fixture) refused(t *testing.T) []derived {
	t.Helper()

	return slices.Concat(f.withMissing(t), f.sized(t, overLimit, 1), f.withUnknownEnums(t), f.withBrokenText(t))
}

// text is a log that may be read while it is written.
type text struct {
	sync.Mutex
	bytes.Buffer
}

// Write implements io.Writer.
func (l *text) Write(p []byte) (int, error) {
	l.Lock()
	defer l.Unlock()

	return l.Buffer.Write(p)
}

// TestGeneratedRequestsThroughAProxy: a proxy hands invalid requests on as they are and the refusals
// back, and shows no secret.
func TestGeneratedRequestsThroughAProxy(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	f, log := newFixture(t), &text{}
	config := driver.Defaults()
	config.Endpoint, config.ReadyFile = "unix://"+filepath.Join(f.Root, "proxy.sock"), filepath.Join(f.Root, "proxy.ready")
	config.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug - 4}))

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)

	go func() { ended <- driver.Forward(ctx, config, f.Config.Endpoint) }()

	direct := f.Client
	client, err := csiclient.Connect(config.Endpoint, append(awaitcall.Options(t), conformance.Observe(t, f.World)...)...)
	require.NoError(t, err)
	t.Cleanup(func() {
		f.Client = direct

		require.NoError(t, client.Close())
		cancel()
		require.NoError(t, await.Receive(t, ended, "the proxy to end"))
	})
	harness.AwaitReady(t, client)

	f.Client = client
	f.refuse(t, f.refused(t))

	for _, each := range f.secretive(t) {
		err := each.call(t, metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+secretMark), f)
		requireNoSecret(t, each.name()+"'s error", status.Convert(err).Message())
	}

	log.Lock()
	defer log.Unlock()
	requireNoSecret(t, "log of the proxy", log.String())
}

// TestGeneratedRequestsToASimulatedNode: a simulated node refuses what a node does.
func TestGeneratedRequestsToASimulatedNode(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	f := newFixture(t, func(c *driver.Config) { c.SimulateNode = true })
	served := map[string]bool{}

	for _, each := range f.requests(t) {
		if strings.HasPrefix(each.name(), "Node") && each.method.Input().Fields().Len() > 0 {
			empty, err := conformance.NewMessage(each.method.Input())
			require.NoError(t, err)

			served[each.name()] = status.Code(conformance.Call(t.Context(), f.Conn(), each.method, empty)) != codes.Unimplemented
		}
	}

	require.True(t, served["NodeStageVolume"] && served["NodePublishVolume"], "%v", served)
	f.refuse(t, slices.DeleteFunc(f.refused(t), func(d derived) bool { return !served[d.name()] }))
}

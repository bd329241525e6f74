package claim_test

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/kubernetes/claim"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/kubeapi"
)

func newReader(t *testing.T, config claim.Config) *claim.Reader {
	t.Helper()

	reader, err := claim.New(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, reader.Close()) })

	return reader
}

func TestOnlyTheAnnotationTrueIsAYes(t *testing.T) {
	t.Parallel()

	api := kubeapi.Start(t)
	reader := newReader(t, claim.Config{Kubeconfig: api.Kubeconfig})

	for name, test := range map[string]struct {
		annotations map[string]string
		want        bool
	}{
		"true":    {map[string]string{"skip-hostmount": "true", "else": "x"}, true},
		"false":   {map[string]string{"skip-hostmount": "false"}, false},
		"capital": {map[string]string{"skip-hostmount": "True"}, false},
		"empty":   {map[string]string{"skip-hostmount": ""}, false},
		"other":   {map[string]string{"example.com/skip-hostmount": "true"}, false},
		"none":    {nil, false},
	} {
		api.Put("shop", name, test.annotations)

		direct, err := reader.Direct(t.Context(), "shop", name)
		require.NoError(t, err, name)
		require.Equal(t, test.want, direct, name)
		require.Contains(t, api.Asked(), "/api/v1/namespaces/shop/persistentvolumeclaims/"+name)
	}
}

func TestCloseEndsConnections(t *testing.T) {
	t.Parallel()

	api := kubeapi.Start(t)
	api.Put("shop", "data", nil)

	reader, err := claim.New(claim.Config{Kubeconfig: api.Kubeconfig})
	require.NoError(t, err)

	_, err = reader.Direct(t.Context(), "shop", "data")
	require.NoError(t, err)
	require.NoError(t, reader.Close())

	await.Return(t, api.Left, "the connection to be closed")
}

// TestCloseEndsConnectionsWithoutAnAnswer closes readers at once after a request is canceled that
// the server has not answered. The client may still have it on its connection, which is not idle
// then.
func TestCloseEndsConnectionsWithoutAnAnswer(t *testing.T) {
	t.Parallel()

	received, ended := make(chan struct{}, 1), make(chan struct{}, 1)
	server := httptest.NewUnstartedServer(nil)
	server.TLS = &tls.Config{NextProtos: []string{"h2"}}
	server.Config.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){
		"h2": func(_ *http.Server, connection *tls.Conn, _ http.Handler) {
			_, err := io.CopyN(io.Discard, connection, int64(len(http2.ClientPreface)))
			for frames := http2.NewFramer(nil, connection); err == nil; {
				var frame http2.Frame
				if frame, err = frames.ReadFrame(); err == nil && frame.Header().Type == http2.FrameHeaders {
					received <- struct{}{}
				}
			}

			ended <- struct{}{}
		},
	}
	server.StartTLS()
	t.Cleanup(server.Close)

	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	kubeapi.WriteKubeconfig(t, kubeconfig, server, kubeapi.Token)

	for range 100 {
		reader, err := claim.New(claim.Config{Kubeconfig: kubeconfig, Timeout: await.Limit})
		require.NoError(t, err)

		ctx, cancel := context.WithCancel(t.Context())

		go func() {
			<-received
			cancel()
		}()

		_, err = reader.Direct(ctx, "shop", "data")
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, reader.Close())

		// Less than the time after which the client takes the connection for broken.
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Fatal("the connection stays open")
		}
	}
}

func TestUnreadableClaimFails(t *testing.T) {
	t.Parallel()

	api := kubeapi.Start(t)
	ask := func(kubeconfig string) error {
		direct, err := newReader(t, claim.Config{Kubeconfig: kubeconfig}).Direct(t.Context(), "shop", "data")
		require.False(t, direct, "want: the claim does not ask for direct assignment")
		errtext.Require(t, err, "shop/data")
		require.NotContains(t, err.Error(), kubeapi.Token)

		return err
	}

	err := ask(api.Kubeconfig)
	require.ErrorIs(t, err, volume.ErrClaimUnreadable)
	errtext.Require(t, err, "not found")

	err = ask(api.KubeconfigWith(t, "another-token"))
	require.ErrorIs(t, err, volume.ErrClaimUnreadable)
	errtext.Require(t, err, "renew")
	require.NotContains(t, err.Error(), "another-token")

	api.Instead(kubeapi.Forbidden)

	err = ask(api.Kubeconfig)
	require.ErrorIs(t, err, volume.ErrClaimUnreadable)
	errtext.Require(t, err, "deploy/direct-assign/rbac.yaml")

	for name, handler := range map[string]http.HandlerFunc{"500": kubeapi.Broken, "garbage": kubeapi.Garbage} {
		api.Instead(handler)
		require.ErrorIs(t, ask(api.Kubeconfig), volume.ErrClaimUnavailable, name)
	}

	api.Stop()
	require.ErrorIs(t, ask(api.Kubeconfig), volume.ErrClaimUnavailable)
}

func TestEachRequestTimesOut(t *testing.T) {
	t.Parallel()

	require.Less(t, claim.DefaultTimeout, 10*time.Second, "want: less than what the provisioner waits for CreateVolume")

	api := kubeapi.Start(t)
	api.Instead(kubeapi.Hang)

	_, err := newReader(t, claim.Config{Kubeconfig: api.Kubeconfig, Timeout: 50 * time.Millisecond}).Direct(t.Context(), "shop", "data")
	require.ErrorIs(t, err, volume.ErrClaimUnavailable)
	errtext.Require(t, err, "no answer within 50ms")

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()

	_, err = newReader(t, claim.Config{Kubeconfig: api.Kubeconfig, Timeout: time.Hour}).Direct(ctx, "shop", "data")
	require.ErrorIs(t, err, volume.ErrClaimUnavailable)

	// The client retries after Retry-After, but not beyond its timeout.
	api.Instead(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
	})

	_, err = newReader(t, claim.Config{Kubeconfig: api.Kubeconfig, Timeout: 50 * time.Millisecond}).Direct(t.Context(), "shop", "data")
	require.ErrorIs(t, err, volume.ErrClaimUnavailable)
}

// TestNamesSelectNoOtherObject: a name must not lead to another object of the API.
func TestNamesSelectNoOtherObject(t *testing.T) {
	t.Parallel()

	api := kubeapi.Start(t)
	reader := newReader(t, claim.Config{Kubeconfig: api.Kubeconfig})

	for _, claimed := range [][2]string{
		{"shop", "../secrets/data"},
		{"shop", ".."},
		{"shop", "data?watch=true"},
		{"shop", "data/status"},
		{"shop", ""},
		{"", "data"},
		{"shop/../kube-system", "data"},
		{"..", "data"},
		{"shop", "d%2e"},
	} {
		_, err := reader.Direct(t.Context(), claimed[0], claimed[1])
		require.ErrorIs(t, err, volume.ErrParameter, claimed)
	}

	require.Empty(t, api.Asked(), "want: the API is not asked for such a name")
}

func TestNewRefusesAnInvalidKubeconfig(t *testing.T) {
	t.Parallel()

	directory := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(directory, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))

		return path
	}

	for _, kubeconfig := range []string{
		filepath.Join(directory, "missing"), write("empty", ""), write("garbage", "users: [token: s3cret"),
		write("no-cluster", "apiVersion: v1\nkind: Config\nusers: [{name: a, user: {token: s3cret}}]\n"), claim.InCluster,
		write("no-authority", "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: a, cluster: {server: 'https://127.0.0.1', "+
			"certificate-authority-data: bm90IGEgY2VydGlmaWNhdGU=}}]\nusers: [{name: a, user: {token: s3cret}}]\n"+
			"contexts: [{name: a, context: {cluster: a, user: a}}]\n"),
	} {
		_, err := claim.New(claim.Config{Kubeconfig: kubeconfig})
		errtext.Require(t, err, "kubeconfig "+kubeconfig)
		require.NotContains(t, err.Error(), "s3cret")
	}
}

// TestUnexpectedResponsesFail: the server need not be an API server.
func TestUnexpectedResponsesFail(t *testing.T) {
	t.Parallel()

	api := kubeapi.Start(t)
	api.Put("shop", "data", map[string]string{"skip-hostmount": "true"})

	reader := newReader(t, claim.Config{Kubeconfig: api.Kubeconfig})

	api.Instead(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1",` +
			`"metadata":{"name":"other","namespace":"shop","annotations":{"skip-hostmount":"true"}}}`))
	})

	_, err := reader.Direct(t.Context(), "shop", "data")
	require.ErrorIs(t, err, volume.ErrClaimUnavailable)
	errtext.Require(t, err, "shop/other")

	refused := make(chan struct{})

	api.Instead(func(w http.ResponseWriter, _ *http.Request) {
		defer close(refused)

		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"metadata":{"name":"`))

		// As long as the client reads.
		for _, err := w.Write(make([]byte, 1<<16)); err == nil; {
			_, err = w.Write(make([]byte, 1<<16))
		}
	})

	_, err = reader.Direct(t.Context(), "shop", "data")
	require.ErrorIs(t, err, volume.ErrClaimUnavailable)
	await.Receive(t, refused, "the connection to be closed")
}

package direct_test

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/kubeapi"
	"github.com/touchstone-csi/touchstone/test/logs"
)

// forClaim makes the parameters as the provisioner does with --extra-create-metadata.
func forClaim(claim string, more map[string]string) map[string]string {
	parameters := map[string]string{
		"csi.storage.k8s.io/pvc/namespace": "shop", "csi.storage.k8s.io/pvc/name": claim, "csi.storage.k8s.io/pv/name": "pv-" + claim,
	}
	maps.Copy(parameters, more)

	return parameters
}

// askingAPI lets the controller read claims.
func askingAPI(api *kubeapi.Server) harness.Option {
	return func(c *driver.Config) { c.Claims.Kubeconfig = api.Kubeconfig }
}

// annotated are the annotations of a claim that asks for a direct volume.
func annotated() map[string]string { return map[string]string{"skip-hostmount": "true"} }

func TestClaimAsksForDirectVolume(t *testing.T) {
	t.Parallel()

	for _, mode := range []driver.Mode{driver.ModeAll, driver.ModeController} {
		api := kubeapi.Start(t)
		api.Put("shop", "annotated", annotated())
		api.Put("shop", "not-so", map[string]string{"skip-hostmount": "false"})
		api.Put("shop", "in-other-words", map[string]string{"skip-hostmount": "yes"})
		api.Put("shop", "plain", nil)

		d := harness.Start(t, askingAPI(api), harness.InMode(mode))

		for name, test := range map[string]struct {
			parameters map[string]string
			asks       int
			want       string
		}{
			"annotated":                     {forClaim("annotated", nil), 1, "true"},
			"not so":                        {forClaim("not-so", nil), 1, ""},
			"in other words":                {forClaim("in-other-words", nil), 1, ""},
			"plain":                         {forClaim("plain", nil), 1, ""},
			"annotated, of such a class":    {forClaim("annotated", harness.DirectParameters()), 0, "true"},
			"plain, of such a class":        {forClaim("plain", harness.DirectParameters()), 0, "true"},
			"annotated, the class says no":  {forClaim("annotated", map[string]string{harness.DirectKey: "false"}), 1, "true"},
			"a provisioner without":         {nil, 0, ""},
			"a provisioner with half of it": {map[string]string{"csi.storage.k8s.io/pvc/name": "annotated"}, 0, ""},
		} {
			t.Run(string(mode)+" "+name, func(t *testing.T) {
				before := len(api.Asked())
				request := aDirectVolume(harness.NameOf(t), test.parameters)
				claim := harness.NewVolume(t, d, request)
				require.Equal(t, test.want, claim.VolumeContext[harness.DirectKey])
				require.Len(t, api.Asked(), before+test.asks, "want: the claim is asked for once")

				require.Equal(t, claim.VolumeID, harness.NewVolume(t, d, request).VolumeID)
				require.Len(t, api.Asked(), before+test.asks, "want: a retry asks for the claim as often")

				wanted := *claim
				wanted.Capability = csiclient.MountCapability(harness.MultiWriter, "")

				code := codes.OK
				if test.want == "true" {
					code = codes.InvalidArgument
				}

				harness.RequireCode(t, d.Attach(t.Context(), &wanted), code)
			})
		}
	}
}

// TestClaimIsAskedOnce: what was decided when the volume was made stays, whatever
// becomes of the claim and of the API.
func TestClaimIsAskedOnce(t *testing.T) {
	t.Parallel()

	api := kubeapi.Start(t)
	api.Put("shop", "direct", annotated())
	api.Put("shop", "ordinary", nil)

	d := harness.Start(t, askingAPI(api))
	class := map[string]string{"mkfsOptions": "-m 1"}
	made := map[string]*csiclient.Publication{}

	for name, want := range map[string]string{"direct": "true", "ordinary": ""} {
		made[name] = harness.NewVolume(t, d, aDirectVolume(name, forClaim(name, class)))
		require.Equal(t, want, made[name].VolumeContext[harness.DirectKey])
	}

	same := func() {
		t.Helper()

		for name, claim := range made {
			again := harness.NewVolume(t, d, aDirectVolume(name, forClaim(name, class)))
			require.Equal(t, claim.VolumeID, again.VolumeID)
			require.Equal(t, claim.VolumeContext, again.VolumeContext)
			require.True(t, confirms(t, d, claim.VolumeID, class), name)
			require.True(t, confirms(t, d, claim.VolumeID, forClaim(name, class)), name)
			require.False(t, confirms(t, d, claim.VolumeID, map[string]string{"mkfsOptions": "-m 2"}), name)

			_, err := d.CreateVolume(t.Context(), aDirectVolume(name, forClaim(name, nil)))
			harness.RequireCode(t, err, codes.AlreadyExists)
		}

		require.Len(t, harness.ListAll(t, d), 2, "want: both volumes are listed")
	}

	same()
	// The other way round.
	api.Put("shop", "direct", nil)
	api.Put("shop", "ordinary", annotated())
	same()
	require.Len(t, api.Asked(), 2, "want: a volume that exists does not ask for its claim")

	api.Stop()
	same()
	d.Restart(t)
	same()

	// A new volume gets a new decision.
	harness.DeleteVolume(t, d, made["direct"].VolumeID)

	_, err := d.CreateVolume(t.Context(), aDirectVolume("direct", forClaim("direct", class)))
	harness.RequireCode(t, err, codes.Unavailable)
}

// TestUnreadableClaimMakesNoVolume until it can be read.
func TestUnreadableClaimMakesNoVolume(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		instead http.HandlerFunc
		missing bool
		token   string
		timeout time.Duration
		code    codes.Code
		words   []string
	}{
		"not found":    {missing: true, code: codes.FailedPrecondition, words: []string{"not found"}},
		"forbidden":    {instead: kubeapi.Forbidden, code: codes.FailedPrecondition, words: []string{"deploy/direct-assign/rbac.yaml"}},
		"unauthorized": {token: "expired-s3cret-token", code: codes.FailedPrecondition, words: []string{"renew"}},
		"500":          {instead: kubeapi.Broken, code: codes.Unavailable, words: []string{"does not answer"}},
		"hang":         {instead: kubeapi.Hang, timeout: time.Second, code: codes.Unavailable, words: []string{"no answer within 1s"}},
		"garbage":      {instead: kubeapi.Garbage, code: codes.Unavailable, words: []string{"does not answer"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			api := kubeapi.Start(t)
			api.Instead(test.instead)

			if !test.missing {
				api.Put("shop", "data", annotated())
			}

			d := harness.Start(t, askingAPI(api), func(c *driver.Config) {
				c.Claims.Timeout = test.timeout

				if test.token != "" {
					c.Claims.Kubeconfig = api.KubeconfigWith(t, test.token)
				}
			})
			before := harness.Everything(t, d)
			request := aDirectVolume("pvc", forClaim("data", nil))

			for range 2 {
				_, err := d.CreateVolume(t.Context(), request)
				harness.RequireCode(t, err, test.code, append(test.words, "shop/data")...)
				require.NotContains(t, err.Error(), kubeapi.Token)
				require.NotContains(t, err.Error(), "expired-s3cret-token")
				require.Equal(t, before, harness.Everything(t, d))
			}

			// Others do not need it.
			require.Equal(t, "true", harness.NewVolume(t, d, aDirectVolume("class", forClaim("data", harness.DirectParameters()))).VolumeContext[harness.DirectKey])

			api.Instead(nil)
			api.Put("shop", "data", annotated())

			if test.token != "" {
				d.Restart(t, askingAPI(api))
			}

			require.Equal(t, "true", harness.NewVolume(t, d, request).VolumeContext[harness.DirectKey])
		})
	}
}

func TestClaimRequestEndsAtTheDeadline(t *testing.T) {
	t.Parallel()

	api := kubeapi.Start(t)
	answer := make(chan struct{})

	api.Instead(func(w http.ResponseWriter, r *http.Request) {
		<-answer
		kubeapi.Forbidden(w, r)
	})

	d := harness.Start(t, askingAPI(api), func(c *driver.Config) { c.Claims.Timeout = await.Limit })
	// Before the driver stops, which waits for the operation.
	t.Cleanup(func() { close(answer) })

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()

	_, err := d.CreateVolume(ctx, aDirectVolume("pvc", forClaim("data", nil)))
	harness.RequireCode(t, err, codes.DeadlineExceeded)

	// A call for another volume does not wait for it.
	harness.NewVolume(t, d, aDirectVolume("other", nil))
	require.Len(t, harness.ListAll(t, d), 1, "want: the other volume alone is created")
}

// TestAnnotatedClaimOfAnUnfitClassIsRefused: the annotation does not make a volume of another kind.
func TestAnnotatedClaimOfAnUnfitClassIsRefused(t *testing.T) {
	t.Parallel()

	api := kubeapi.Start(t)
	api.Put("shop", "data", annotated())

	d := harness.Start(t, askingAPI(api), harness.SharedPool)
	refused := func(t *testing.T, request *csi.CreateVolumeRequest, words ...string) {
		t.Helper()

		before := harness.Everything(t, d)
		_, err := d.CreateVolume(t.Context(), request)
		harness.RequireCode(t, err, codes.InvalidArgument, append(words, "claim shop/data", "skip-hostmount")...)
		require.Equal(t, before, harness.Everything(t, d))
	}

	directory := aDirectVolume("directory", forClaim("data", harness.DirectoryBacked()))
	refused(t, directory, "backing=image")

	for name, capability := range notDirect() {
		t.Run(name, func(t *testing.T) {
			request := aDirectVolume(harness.NameOf(t), forClaim("data", nil))
			request.VolumeCapabilities = append(request.VolumeCapabilities, capability)

			if mode := capability.GetAccessMode().GetMode(); mode == harness.NodesOne || mode == harness.NodesWrite {
				// No image can have these, which is said first.
				_, err := d.CreateVolume(t.Context(), request)
				harness.RequireCode(t, err, codes.InvalidArgument, "backing=directory")

				return
			}

			refused(t, request, harness.DirectKey)
		})
	}

	before := len(api.Asked())

	for _, name := range []string{"../secrets/data", "data/status", ".."} {
		_, err := d.CreateVolume(t.Context(), aDirectVolume("pvc", forClaim(name, nil)))
		harness.RequireCode(t, err, codes.InvalidArgument, name)
	}

	require.Len(t, api.Asked(), before, "want: the claim is not asked for")
}

func TestKubeconfigIsForTheController(t *testing.T) {
	t.Parallel()

	api := kubeapi.Start(t)
	config := func(mode driver.Mode, kubeconfig string) driver.Config {
		root := t.TempDir()

		c := driver.Defaults()
		c.Mode, c.Endpoint, c.NodeID, c.KubeletDir = mode, "unix://"+filepath.Join(root, "csi.sock"), harness.NodeID, root
		c.StateDir, c.Pools = filepath.Join(root, "state"), map[string]string{"default": filepath.Join(root, "pool")}
		c.Claims.Kubeconfig = kubeconfig

		return c
	}

	_, err := driver.New(t.Context(), config(driver.ModeNode, api.Kubeconfig))
	require.ErrorIs(t, err, driver.ErrConfig)
	errtext.Require(t, err, "kubeconfig is for the controller only")

	_, err = driver.New(t.Context(), config(driver.ModeNode, "in-cluster"))
	require.ErrorIs(t, err, driver.ErrConfig)

	missing := filepath.Join(t.TempDir(), "missing")
	_, err = driver.New(t.Context(), config(driver.ModeController, missing))
	errtext.Require(t, err, "kubeconfig "+missing)

	require.Empty(t, api.Asked(), "want: the API is not asked by a node")
}

func TestTokenIsNotLogged(t *testing.T) {
	t.Parallel()

	api := kubeapi.Start(t)
	log := &logs.Buffer{}
	d := harness.Start(t, askingAPI(api), func(c *driver.Config) {
		c.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.Level(-100)}))
	})

	api.Put("shop", "data", annotated())
	harness.NewVolume(t, d, aDirectVolume("first", forClaim("data", nil)))

	for _, instead := range []http.HandlerFunc{kubeapi.Forbidden, kubeapi.Broken, kubeapi.Garbage} {
		api.Instead(instead)

		request := aDirectVolume("second", forClaim("data", nil))
		_, err := d.CreateVolume(t.Context(), request)
		require.Error(t, err, "CreateVolume while the API server answers wrongly")
	}

	api.Stop()

	_, err := d.CreateVolume(t.Context(), aDirectVolume("second", forClaim("data", nil)))
	harness.RequireCode(t, err, codes.Unavailable)

	// Who has forgotten the provisioner's flag finds out why nothing happens.
	harness.NewVolume(t, d, aDirectVolume("third", nil))
	d.Stop()
	require.Contains(t, log.String(), "--extra-create-metadata")
	require.Contains(t, log.String(), "CreateVolume")
	require.NotContains(t, log.String(), kubeapi.Token)
}

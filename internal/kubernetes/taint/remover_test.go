package taint_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/touchstone-csi/touchstone/internal/kubernetes/taint"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/logs"
)

const key = "csi.touchstone.dev/agent-not-ready"

// api is a stand-in API server with one node. It answers the first requests with the codes of refusals, but
// for 0.
type api struct {
	mu       sync.Mutex
	taints   string
	refusals []int
	patches  []string
	// asked gets the method of each request.
	asked chan string
}

func (a *api) ServeHTTP(to http.ResponseWriter, request *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer func() { a.asked <- request.Method }()

	to.Header().Set("Content-Type", "application/json")

	if request.URL.Path != "/api/v1/nodes/worker" {
		to.WriteHeader(http.StatusNotFound)

		return
	}

	if len(a.refusals) > 0 {
		code := a.refusals[0]
		a.refusals = a.refusals[1:]

		if code != 0 {
			to.WriteHeader(code)

			return
		}
	}

	if request.Method == http.MethodPatch {
		patch, _ := io.ReadAll(request.Body)
		a.patches = append(a.patches, request.Header.Get("Content-Type")+" "+string(patch))

		a.taints = ""
	}

	_, _ = io.WriteString(to, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"worker","resourceVersion":"7"},"spec":{`+a.taints+`}}`)
}

// start runs a remover until the end of the test, and returns its log and the channel of registrations.
func start(t *testing.T, served *api) (log *logs.Buffer, registered chan<- struct{}) {
	t.Helper()

	server := httptest.NewServer(served)
	t.Cleanup(server.Close)

	log = &logs.Buffer{}
	remover, err := taint.New(taint.Config{
		Cluster: &rest.Config{Host: server.URL}, Node: "worker", Key: key, RetryPause: time.Millisecond,
		Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(context.Background())
	signals, ended := make(chan struct{}, 1), make(chan struct{})

	go func() {
		defer close(ended)
		remover.Run(ctx, signals)
	}()

	t.Cleanup(func() {
		cancel()
		await.Receive(t, ended, "the end of the remover")
	})

	return log, signals
}

func TestStartupTaintIsRemoved(t *testing.T) {
	t.Parallel()

	const (
		other = `{"effect":"NoSchedule","key":"dedicated","value":"gpu"}`
		own   = `{"key":"` + key + `","effect":"NoExecute"}`
		test  = `application/json-patch+json [{"op":"test","path":"/metadata/resourceVersion","value":"7"},` +
			`{"op":"replace","path":"/spec/taints","value":`
	)

	for name, given := range map[string]struct {
		taints   string
		refusals []int
		asked    []string
		patches  []string
		logged   string
	}{
		"alone":             {`"taints":[` + own + `]`, nil, []string{"GET", "PATCH"}, []string{test + `[]}]`}, "removed the startup taint"},
		"beside others":     {`"taints":[` + other + `,` + own + `]`, nil, []string{"GET", "PATCH"}, []string{test + `[` + other + `]}]`}, "removed the startup taint"},
		"with two effects":  {`"taints":[` + own + `,` + own + `]`, nil, []string{"GET", "PATCH"}, []string{test + `[]}]`}, "removed the startup taint"},
		"none":              {``, nil, []string{"GET"}, nil, ""},
		"others":            {`"taints":[` + other + `]`, nil, []string{"GET"}, nil, ""},
		"after refusals":    {`"taints":[` + own + `]`, []int{403, 500}, []string{"GET", "GET", "GET", "PATCH"}, []string{test + `[]}]`}, "cannot remove the startup taint"},
		"of a changed node": {`"taints":[` + own + `]`, []int{0, 409}, []string{"GET", "PATCH", "GET", "PATCH"}, []string{test + `[]}]`}, "cannot remove the startup taint"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			served := &api{taints: given.taints, refusals: given.refusals, asked: make(chan string)}
			log, registered := start(t, served)
			registered <- struct{}{}

			for _, want := range given.asked {
				require.Equal(t, want, await.Receive(t, served.asked, "a request"))
			}

			// Another registration asks again, so that what was logged before is there.
			registered <- struct{}{}

			require.Equal(t, http.MethodGet, await.Receive(t, served.asked, "the request of another registration"))

			served.mu.Lock()
			require.Equal(t, given.patches, served.patches)
			served.mu.Unlock()
			require.Contains(t, log.String(), given.logged)
			require.LessOrEqual(t, strings.Count(log.String(), "cannot remove"), 1, "want: a failure is logged once")
		})
	}
}

// TestOutsideOfAPodIsAnError: there is no account then.
func TestOutsideOfAPodIsAnError(t *testing.T) {
	t.Parallel()

	_, err := taint.New(taint.Config{Node: "worker", Key: key})
	errtext.Require(t, err, "startup-taint")
}

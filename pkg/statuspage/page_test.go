package statuspage_test

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/statuspage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errStarting = errors.New("the driver is starting")

func serve(t *testing.T, report statuspage.Report) *httptest.Server {
	t.Helper()

	mux := http.NewServeMux()
	statuspage.Register(mux, report)

	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)

	return server
}

func always(report health.Report) statuspage.Report {
	return func(context.Context) (health.Report, error) { return report, nil }
}

// answered is an answer with its body read.
type answered struct {
	status int
	header http.Header
	body   string
}

// ask does not unpack what it gets.
func ask(t *testing.T, method, url string, headers ...string) answered {
	t.Helper()

	request, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	require.NoError(t, err)

	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}

	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()

	response, err := transport.RoundTrip(request)
	require.NoError(t, err)

	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())

	return answered{response.StatusCode, response.Header, string(body)}
}

func TestThePageNeedsNothingFromElsewhere(t *testing.T) {
	t.Parallel()

	got := ask(t, http.MethodGet, serve(t, always(health.Report{})).URL+"/")
	require.Equal(t, http.StatusOK, got.status)
	require.Equal(t, "text/html; charset=utf-8", got.header.Get("Content-Type"))

	for _, foreign := range []string{"http:", "https:", "url(", "@import", " src=", "innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("} {
		require.NotContains(t, got.body, foreign)
	}

	for _, reference := range regexp.MustCompile(`(?:href|fetch)[=(]['"]([^'"]*)`).FindAllStringSubmatch(got.body, -1) {
		require.Contains(t, []string{"data:,", "health.json"}, reference[1], "only relative references work behind a proxy")
	}
}

func TestThePageMayDoOnlyWhatItHasTo(t *testing.T) {
	t.Parallel()

	server := serve(t, always(health.Report{}))
	got := ask(t, http.MethodGet, server.URL+"/")
	policy := got.header.Get("Content-Security-Policy")

	require.Contains(t, policy, "default-src 'none'")
	require.Contains(t, policy, "connect-src 'self'")
	require.NotContains(t, policy, "unsafe")

	for _, tag := range []string{"script", "style"} {
		inside := regexp.MustCompile(`(?s)<`+tag+`>(.*?)</`+tag+`>`).FindAllStringSubmatch(got.body, -1)
		require.Len(t, inside, 1)

		sum := sha256.Sum256([]byte(inside[0][1]))
		require.Contains(t, policy, tag+"-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
	}

	require.NotRegexp(t, `<[^>]* (on[a-z]+|style)=`, got.body, "the policy forbids it")

	for _, path := range []string{"/", "/health.json"} {
		got := ask(t, http.MethodGet, server.URL+path, "Origin", "http://elsewhere.example.org")
		require.Equal(t, "nosniff", got.header.Get("X-Content-Type-Options"))
		require.Contains(t, got.header.Get("Content-Security-Policy"), "frame-ancestors 'none'")

		for name := range got.header {
			require.False(t, strings.HasPrefix(name, "Access-Control-"), name)
		}
	}
}

func TestThePageIsReadOnly(t *testing.T) {
	t.Parallel()

	server := serve(t, always(health.Report{}))

	for _, path := range []string{"/", "/health.json"} {
		got := ask(t, http.MethodHead, server.URL+path)
		require.Equal(t, http.StatusOK, got.status)
		require.Empty(t, got.body)

		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions} {
			got := ask(t, method, server.URL+path)
			require.Equal(t, http.StatusMethodNotAllowed, got.status, method)
		}
	}

	for _, path := range []string{"/index.html", "/page.html", "/health.json/", "/.."} {
		got := ask(t, http.MethodGet, server.URL+path)
		require.NotEqual(t, http.StatusOK, got.status, path)
	}
}

func TestTheDataAreTheReport(t *testing.T) {
	t.Parallel()

	report := sick(time.Now())
	want, err := json.Marshal(report)
	require.NoError(t, err)

	server := serve(t, always(report))

	got := ask(t, http.MethodGet, server.URL+"/health.json")
	require.Equal(t, "application/json", got.header.Get("Content-Type"))
	require.Equal(t, "no-store", got.header.Get("Cache-Control"))
	require.Equal(t, string(want), got.body)

	got = ask(t, http.MethodGet, server.URL+"/health.json", "Accept-Encoding", "br, gzip")
	require.Equal(t, "gzip", got.header.Get("Content-Encoding"))

	reader, err := gzip.NewReader(strings.NewReader(got.body))
	require.NoError(t, err)

	unpacked, err := io.ReadAll(reader)
	require.NoError(t, err)
	require.Equal(t, string(want), string(unpacked))
}

func TestThereAreNoDataYet(t *testing.T) {
	t.Parallel()

	server := serve(t, func(context.Context) (health.Report, error) { return health.Report{}, errStarting })

	got := ask(t, http.MethodGet, server.URL+"/health.json")
	require.Equal(t, http.StatusServiceUnavailable, got.status)
	require.Equal(t, errStarting.Error()+"\n", got.body)

	got = ask(t, http.MethodGet, server.URL+"/")
	require.Equal(t, http.StatusOK, got.status)
}

package statuspage_test

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/touchstone-csi/touchstone/internal/driver/statuspage"
	"github.com/touchstone-csi/touchstone/internal/health"
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

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	request, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
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

// abnormalReport is of a driver with conditions of every kind.
func abnormalReport(now time.Time) health.Report {
	const gi = 1 << 30

	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	is := func(reason health.Reason, message, view string, since time.Duration) health.ConditionReport {
		return health.ConditionReport{Entry: health.NewEntry(reason, message), View: view, Since: ago(since)}
	}
	checked := func(verdict, how, detail string, at time.Duration) *health.CheckReport {
		return &health.CheckReport{
			At: ago(at), Verdict: verdict, How: how, Detail: detail, Took: 84 * time.Millisecond, CleanAt: ago(at + time.Hour), Period: 24 * time.Hour,
		}
	}
	used := func(total, used int64) *health.Usage {
		return &health.Usage{
			Bytes:  health.Amount{Total: total, Used: used, Available: total - used},
			Inodes: health.Amount{Total: 65536, Used: 1200, Available: 64336},
		}
	}
	published := func(name string) []string {
		return []string{"/var/lib/kubelet/pods/" + name + "/volumes/kubernetes.io~csi/" + name + "/mount"}
	}
	staged := "/var/lib/kubelet/plugins/kubernetes.io/csi/csi.touchstone.dev/0a1b2c/globalmount"

	volumes := []health.VolumeReport{
		{
			Name: "pvc-orders-db", Pool: "fast", FSType: "ext4", Backing: "image", CapacityBytes: 40 * gi,
			Staged: staged, Published: published("orders"), Usage: used(39*gi, 31*gi),
			Conditions: []health.ConditionReport{
				is(health.FilesystemCorrupted, "the last check found damage; restore a snapshot, or repair it while it is not in use", "node", 14*time.Minute),
				is(health.IOErrors, "its device fails requests; check the disk below the pool", "node", 15*time.Minute),
			},
			Check: checked("damaged", "online", "e2fsck: inode 131 has an invalid extent; block bitmap differences", 14*time.Minute),
		},
		{
			Name: "pvc-uploads", Pool: "default", FSType: "xfs", Backing: "image", CapacityBytes: 100 * gi,
			Staged: staged, Published: published("uploads"), Usage: used(100*gi, 99*gi+gi/2), Check: checked("clean", "online", "", 5*time.Hour),
			Conditions: []health.ConditionReport{is(health.OutOfCapacity, "it is full; delete files, or expand it", "node", 42*time.Second)},
		},
		{
			Name: "pvc-archive", Pool: "default", FSType: "btrfs", Backing: "image", CapacityBytes: 20 * gi,
			Conditions: []health.ConditionReport{is(health.BackingFileMissing, `its image is not in pool "default"; put it back, or restore a backup`, "controller", 26*time.Hour)},
		},
		{Name: "pvc-cache", Pool: "default", Backing: "directory", Staged: staged, Published: published("cache")},
		{
			Name: "pvc-metrics", Pool: "fast", FSType: "ext4", Backing: "image", CapacityBytes: 10 * gi,
			Staged: staged, Published: published("metrics"), Usage: used(10*gi, 3*gi), Check: checked("clean", "online", "", 2*time.Hour),
		},
		{Name: "pvc-raw-queue", Pool: "fast", Backing: "image", CapacityBytes: 8 * gi, Staged: staged, Published: published("queue")},
		{
			Name: "pvc-web", Pool: "default", FSType: "xfs", Backing: "image", CapacityBytes: 5 * gi,
			Staged: staged, Published: published("web"), Usage: used(5*gi, gi), Check: checked("repaired", "stage", "its log was replayed", 8*time.Hour),
		},
	}
	for i := range volumes {
		volumes[i].ID = fmt.Sprintf("0198c2a4-71d0-7c3e-9a31-3f0c55d1b%03d", i)
	}

	said := func(volume int, reason health.Reason, cleared bool, at time.Duration) health.Change {
		return health.Change{
			At: ago(at), View: "node", Subject: volumes[volume].ID, Status: reason.Status(), Reason: reason, Cleared: cleared, Message: "it was seen",
		}
	}

	return health.Report{
		Driver: "csi.touchstone.dev", Version: "v0.9.0", Node: "worker-3", Mode: "all", At: now,
		Sources: map[string][]health.SourceStatus{
			"node": {
				{Name: "block-errors", Connected: true},
				{Name: "mounts", Connected: true},
				{Name: "devices", Connected: true},
				{Name: "files", Connected: true},
				{Name: "filesystem-errors", Problem: "fanotify: invalid argument"},
			},
			"controller": {{Name: "files", Connected: true}},
		},
		Storage: []health.StorageReport{
			{Name: "default", Kind: "pool", Path: "/var/lib/touchstone/pool", Bytes: &health.Amount{Total: 200 * gi, Used: 61 * gi, Available: 139 * gi}},
			{
				Name: "fast", Kind: "pool", Path: "/srv/nvme/touchstone", Bytes: &health.Amount{Total: 100 * gi, Used: 93 * gi, Available: 7 * gi},
				Conditions: []health.ConditionReport{is(health.PoolNearlyFull, `pool "fast" is nearly full; delete volumes or enlarge /srv/nvme/touchstone`, "storage", 3*time.Hour)},
			},
			{Name: "state", Kind: "state", Path: "/var/lib/touchstone/state"},
		},
		Volumes: volumes,
		Changes: []health.Change{
			said(1, health.OutOfCapacity, false, 42*time.Second), said(0, health.FilesystemCorrupted, false, 14*time.Minute),
			said(0, health.IOErrors, false, 15*time.Minute), said(6, health.VolumeUnmounted, true, time.Hour),
			said(6, health.VolumeUnmounted, false, 63*time.Minute),
		},
	}
}

func TestPageIsSelfContained(t *testing.T) {
	t.Parallel()

	got := ask(t, http.MethodGet, serve(t, always(health.Report{})).URL+"/")
	require.Equal(t, http.StatusOK, got.status, "want: the page answers")
	require.Equal(t, "text/html; charset=utf-8", got.header.Get("Content-Type"))

	for _, foreign := range []string{"http:", "https:", "url(", "@import", " src=", "innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("} {
		require.NotContains(t, got.body, foreign)
	}

	for _, reference := range regexp.MustCompile(`(?:href|fetch)[=(]['"]([^'"]*)`).FindAllStringSubmatch(got.body, -1) {
		require.Contains(t, []string{"data:,", "health.json"}, reference[1], "only relative references work behind a proxy")
	}
}

func TestPageHasAStrictSecurityPolicy(t *testing.T) {
	t.Parallel()

	server := serve(t, always(health.Report{}))
	got := ask(t, http.MethodGet, server.URL+"/")
	policy := got.header.Get("Content-Security-Policy")

	require.Contains(t, policy, "default-src 'none'")
	require.Contains(t, policy, "connect-src 'self'")
	require.NotContains(t, policy, "unsafe")

	for _, tag := range []string{"script", "style"} {
		inside := regexp.MustCompile(`(?s)<`+tag+`>(.*?)</`+tag+`>`).FindAllStringSubmatch(got.body, -1)
		require.Len(t, inside, 1, "want: the page has one element of the kind")

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

func TestPageIsReadOnly(t *testing.T) {
	t.Parallel()

	server := serve(t, always(health.Report{}))

	for _, path := range []string{"/", "/health.json"} {
		got := ask(t, http.MethodHead, server.URL+path)
		require.Equal(t, http.StatusOK, got.status, "want: HEAD answers")
		require.Empty(t, got.body, "want: HEAD has no body")

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

func TestDataAreTheReport(t *testing.T) {
	t.Parallel()

	report := abnormalReport(time.Now())
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

func TestDataAreUnavailableDuringTheStart(t *testing.T) {
	t.Parallel()

	server := serve(t, func(context.Context) (health.Report, error) { return health.Report{}, errStarting })

	got := ask(t, http.MethodGet, server.URL+"/health.json")
	require.Equal(t, http.StatusServiceUnavailable, got.status, "want: /health.json fails until there is data")
	require.Equal(t, errStarting.Error()+"\n", got.body)

	got = ask(t, http.MethodGet, server.URL+"/")
	require.Equal(t, http.StatusOK, got.status, "want: the page answers before there is data")
}

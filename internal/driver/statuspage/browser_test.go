//go:build chromium

package statuspage_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/health"
)

// screenshots names the directory that `make test-page` wants pictures in.
const screenshots = "TOUCHSTONE_SCREENSHOTS"

// browse opens the page in a real browser, lets the page's own clock run for so
// long, and returns the document as it is then.
func browse(t *testing.T, url string, lasting time.Duration, flags ...string) string {
	t.Helper()

	browser := ""

	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil && browser == "" {
			browser = found
		}
	}

	require.NotEmpty(t, browser, "chromium is not installed: `make test-page` does that")

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	home := t.TempDir()
	command := exec.CommandContext(ctx, browser, append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--user-data-dir=" + home,
		"--no-first-run", "--disable-extensions", "--disable-background-networking", "--dump-dom",
		fmt.Sprintf("--virtual-time-budget=%d", lasting.Milliseconds()),
	}, append(flags, url)...)...)
	command.Env = append(os.Environ(), "HOME="+home)

	var problems strings.Builder

	command.Stderr = &problems
	document, err := command.Output()
	require.NoError(t, err, problems.String())

	return string(document)
}

func TestBrowserShowsTheReport(t *testing.T) {
	t.Parallel()

	document := browse(t, serve(t, always(abnormalReport(time.Now()))).URL+"/", time.Second)

	for _, shown := range []string{
		"3 volumes and pool fast are unhealthy", "worker-3", "pvc-archive", "BackingFileMissing", "for 26 h", "99.5 GiB of 100 GiB, 99&nbsp;%",
		"93.0 GiB of 100 GiB used, 93&nbsp;%", "damaged", "e2fsck: inode 131", "5 of 6", "fanotify: invalid argument", "cleared", "7 volumes",
	} {
		require.Contains(t, document, shown)
	}

	// The worst come first, the healthy last and by their names.
	at := -1

	_, volumes, _ := strings.Cut(document, `id="volumes"`)
	for _, name := range []string{"pvc-orders-db", "pvc-archive", "pvc-uploads", "pvc-cache", "pvc-metrics", "pvc-raw-queue", "pvc-web"} {
		found := strings.Index(volumes, ">"+name+"<")
		require.Greater(t, found, at, name)
		at = found
	}
}

func TestBrowserShowsDataAsText(t *testing.T) {
	t.Parallel()

	const hostile = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>`

	report := abnormalReport(time.Now())
	report.Volumes[0].Name, report.Volumes[0].Check.Detail, report.Node, report.Storage[0].Name = hostile, hostile, hostile, hostile
	report.Volumes[0].Conditions[0].Message, report.Changes[0].Subject, report.Sources["node"][0].Name = hostile, hostile, hostile

	document := browse(t, serve(t, always(report)).URL+"/", time.Second)
	require.NotContains(t, document, "<img")
	require.NotContains(t, document, "<title>owned")
	require.Equal(t, 1, strings.Count(document, "<script>"), "want: the page has its own script only")
	require.GreaterOrEqual(t, strings.Count(document, "&lt;img src=x"), 6, "want: markup in names and messages is escaped")
}

func TestBrowserLimitsTheRows(t *testing.T) {
	t.Parallel()

	const many = 3000

	report := abnormalReport(time.Now())
	for i := range many - len(report.Volumes) {
		healthy := report.Volumes[4]
		healthy.ID, healthy.Name = fmt.Sprintf("volume-%d", i), fmt.Sprintf("pvc-%04d", i)
		report.Volumes = append(report.Volumes, healthy)
	}

	url := serve(t, always(report)).URL

	document := browse(t, url+"/", time.Second)
	require.Contains(t, document, "3,000 volumes")
	require.Contains(t, document, "Show more (2,950 left)")
	require.Contains(t, document, ">pvc-orders-db<")

	_, volumes, _ := strings.Cut(document, `id="volumes"`)
	volumes, _, _ = strings.Cut(volumes, `id="volumes-none"`)
	require.Equal(t, 50, strings.Count(volumes, "<h3>"), "want: the page shows the first 50 volumes")

	require.Contains(t, browse(t, url+"/#filter=ext4+orders", time.Second), "1 of 3,000 volumes")
	require.Contains(t, browse(t, url+"/#abnormal=1&filter=metrics", time.Second), "No volume fits the filter.")
}

func TestBrowserRefreshesTheReport(t *testing.T) {
	t.Parallel()

	healthy := abnormalReport(time.Now())
	healthy.Volumes, healthy.Storage = healthy.Volumes[3:], healthy.Storage[:1]

	var asked atomic.Int64

	// It is asked every two seconds.
	script := func(lasting time.Duration) string {
		asked.Store(0)

		return browse(t, serve(t, func(context.Context) (health.Report, error) {
			switch asked.Add(1) {
			case 1:
				return abnormalReport(time.Now()), nil
			case 2:
				panic(http.ErrAbortHandler)
			case 3:
				return health.Report{}, errStarting
			default:
				return healthy, nil
			}
		}).URL+"/", lasting)
	}

	document := script(3 * time.Second)
	require.Contains(t, document, "Unreachable since ")
	require.Contains(t, document, "no connection")
	require.Contains(t, document, "FilesystemCorrupted", "what was known is still there")
	require.Contains(t, document, `<body class="stale">`)

	require.Contains(t, script(5*time.Second), errStarting.Error())

	document = script(7 * time.Second)
	require.Contains(t, document, "All healthy")
	require.NotContains(t, document, "stale\"")
	require.Regexp(t, `id="lost"[^>]* hidden`, document)
}

func TestScreenshotsAreTaken(t *testing.T) {
	t.Parallel()

	directory := os.Getenv(screenshots)
	if directory == "" {
		t.Skip("no pictures are asked for (" + screenshots + ")")
	}

	require.NoError(t, os.MkdirAll(directory, 0o750))

	url := serve(t, func(context.Context) (health.Report, error) { return abnormalReport(time.Now()), nil }).URL + "/"
	dark := "--blink-settings=preferredColorScheme=0"

	for name, flags := range map[string][]string{
		"light": {"--window-size=1280,1700"}, "dark": {"--window-size=1280,1700", dark},
		"phone": {"--window-size=390,3000"}, "phone-dark": {"--window-size=390,3000", dark},
	} {
		picture := filepath.Join(directory, "status-page-"+name+".png")
		browse(t, url, time.Second, append(flags, "--screenshot="+picture)...)

		require.FileExists(t, picture)
	}
}

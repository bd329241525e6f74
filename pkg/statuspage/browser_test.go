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

	"github.com/touchstone-csi/touchstone/pkg/health"
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

	if browser == "" {
		t.Skip("chromium is not installed: `make test-page` does that")
	}

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

// sick is a driver with a bit of everything.
func sick(now time.Time) health.Report {
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
				is(health.IOErrors, "its device fails requests; look at the disk below the pool", "node", 15*time.Minute),
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

func TestTheBrowserShowsTheReport(t *testing.T) {
	t.Parallel()

	document := browse(t, serve(t, always(sick(time.Now()))).URL+"/", time.Second)

	for _, shown := range []string{
		"3 volumes and pool fast are not well", "worker-3", "pvc-archive", "BackingFileMissing", "for 26 h", "99.5 GiB of 100 GiB, 99&nbsp;%",
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

func TestTheBrowserTakesDataForText(t *testing.T) {
	t.Parallel()

	const hostile = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>`

	report := sick(time.Now())
	report.Volumes[0].Name, report.Volumes[0].Check.Detail, report.Node, report.Storage[0].Name = hostile, hostile, hostile, hostile
	report.Volumes[0].Conditions[0].Message, report.Changes[0].Subject, report.Sources["node"][0].Name = hostile, hostile, hostile

	document := browse(t, serve(t, always(report)).URL+"/", time.Second)
	require.NotContains(t, document, "<img")
	require.NotContains(t, document, "<title>owned")
	require.Equal(t, 1, strings.Count(document, "<script>"))
	require.GreaterOrEqual(t, strings.Count(document, "&lt;img src=x"), 6)
}

func TestTheBrowserShowsAFewOfMany(t *testing.T) {
	t.Parallel()

	const many = 3000

	report := sick(time.Now())
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
	require.Equal(t, 50, strings.Count(volumes, "<h3>"))

	require.Contains(t, browse(t, url+"/#filter=ext4+orders", time.Second), "1 of 3,000 volumes")
	require.Contains(t, browse(t, url+"/#abnormal=1&filter=metrics", time.Second), "No volume fits the filter.")
}

func TestTheBrowserKeepsUpWithTheDriver(t *testing.T) {
	t.Parallel()

	well := sick(time.Now())
	well.Volumes, well.Storage = well.Volumes[3:], well.Storage[:1]

	var asked atomic.Int64

	// It is asked every two seconds.
	script := func(lasting time.Duration) string {
		asked.Store(0)

		return browse(t, serve(t, func(context.Context) (health.Report, error) {
			switch asked.Add(1) {
			case 1:
				return sick(time.Now()), nil
			case 2:
				panic(http.ErrAbortHandler)
			case 3:
				return health.Report{}, errStarting
			default:
				return well, nil
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
	require.Contains(t, document, "All is well")
	require.NotContains(t, document, "stale\"")
	require.Regexp(t, `id="lost"[^>]* hidden`, document)
}

func TestPicturesForPeople(t *testing.T) {
	t.Parallel()

	directory := os.Getenv(screenshots)
	if directory == "" {
		t.Skip("no pictures are asked for (" + screenshots + ")")
	}

	require.NoError(t, os.MkdirAll(directory, 0o750))

	url := serve(t, func(context.Context) (health.Report, error) { return sick(time.Now()), nil }).URL + "/"
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

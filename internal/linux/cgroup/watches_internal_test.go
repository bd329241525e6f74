package cgroup

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/inotify"
)

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.text.Write(p)
}

func (l *lines) has(words ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	return !slices.ContainsFunc(words, func(each string) bool { return !strings.Contains(l.text.String(), each) })
}

func (l *lines) count(word string) int {
	l.mu.Lock()
	defer l.mu.Unlock()

	return strings.Count(l.text.String(), word)
}

// makeRules makes a directory with the files of a cgroup of version 1.
func makeRules(t *testing.T, parts ...string) string {
	t.Helper()

	path := filepath.Join(parts...)
	require.NoError(t, os.MkdirAll(path, 0o700))

	for _, each := range ruleFiles {
		require.NoError(t, os.WriteFile(filepath.Join(path, each), nil, 0o600))
	}

	return path
}

func ruleIn(cgroup string) string {
	text, _ := os.ReadFile(filepath.Join(cgroup, "blkio.throttle.read_iops_device"))

	return string(text)
}

// TestNewCgroupsOfALimitedPodGetItsRule when they appear, or later if the event was lost; those of other
// pods get none, and nothing is watched of a pod without a rule.
func TestNewCgroupsOfALimitedPodGetItsRule(t *testing.T) {
	t.Parallel()

	var log lines

	root := t.TempDir()
	makeRules(t, root, "blkio")
	limited, other := makeRules(t, root, "blkio", "kubepods", "poda"), makeRules(t, root, "blkio", "kubepods", "podb")
	inner := makeRules(t, limited, "early", "inner")

	limiter := NewLimiter(root, slog.New(slog.NewTextHandler(&log, nil)))
	defer func() { require.NoError(t, limiter.Close()) }()

	device := Device{Major: 7, Minor: 5}
	watched := func() []string { return slices.Sorted(slices.Values(limiter.v1.watcher.Directories())) }

	require.NoError(t, limiter.Set("b", device, Limits{WriteIOPS: 1}))
	require.Equal(t, []string{other}, watched(), "want: the limited pod is watched")
	require.NoError(t, limiter.Set("a", device, Limits{ReadIOPS: 9}))
	require.Equal(t, []string{limited, filepath.Dir(inner), inner, other}, watched(), "want: all cgroups of both pods are watched")
	require.Equal(t, "7:5 9", ruleIn(inner), "want: a cgroup beneath the pod's has its rule")

	// A cgroup has its files when it appears.
	appear := func(at string) string {
		require.NoError(t, os.Rename(makeRules(t, t.TempDir(), "cgroup"), at))

		return at
	}
	gets := func(cgroup, want string) {
		t.Helper()
		require.Eventually(t, func() bool { return ruleIn(cgroup) == want }, 10*time.Second, time.Millisecond, "want: %s gets the rule %q", cgroup, want)
	}

	late := appear(filepath.Join(limited, "late"))
	gets(late, "7:5 9")
	gets(appear(filepath.Join(late, "inner")), "7:5 9")
	require.NoError(t, os.WriteFile(filepath.Join(limited, "no cgroup"), nil, 0o600))

	// These files appear one by one, after the event.
	lost := makeRules(t, limited, "lost")
	require.Empty(t, ruleIn(other), "want: another pod has a rule of its own")

	// As the watcher reports too many events.
	limiter.v1.take(limiter.v1.watcher, inotify.Event{Kind: inotify.Lost})

	gets(lost, "7:5 9") // also of an event, before the scan
	require.True(t, log.has("level=WARN", "events were lost"), "want: the log has the reason of the scan")

	// What is no file of a rule is reported.
	broken := makeRules(t, t.TempDir(), "cgroup")
	require.NoError(t, os.Remove(filepath.Join(broken, ruleFiles[0])))
	require.NoError(t, os.Mkdir(filepath.Join(broken, ruleFiles[0]), 0o700))
	require.NoError(t, os.Rename(broken, filepath.Join(limited, "broken")))
	require.Eventually(t, func() bool {
		return log.has("level=ERROR", "a container of a limited pod is not limited", filepath.Join(limited, "broken"))
	},
		10*time.Second, time.Millisecond, "want: the log has the cgroup that is not limited")
	require.NoError(t, os.RemoveAll(filepath.Join(limited, "broken")))
	require.Eventually(t, func() bool { return !slices.Contains(watched(), filepath.Join(limited, "broken")) },
		10*time.Second, time.Millisecond, "want: a cgroup that is gone is not watched")
	require.Equal(t, 1, log.count("events were lost"), "want: no event is lost with a cgroup")

	require.NoError(t, limiter.Remove("a", device))
	require.Equal(t, []string{other}, watched(), "want: a pod without a rule is not watched")
	require.Equal(t, "7:5 0", ruleIn(late), "want: a cgroup loses the rule")
	require.Len(t, limiter.v1.pods, 1, "want: a pod without a rule is forgotten")

	require.NoError(t, os.RemoveAll(other))
	require.NoError(t, limiter.Remove("b", device))
	require.Empty(t, watched(), "want: a pod that is gone is not watched")
	require.Empty(t, limiter.v1.pods, "want: a pod that is gone is forgotten")
}

// TestAPodIsForgottenWithItsLastRule: two devices have a rule each.
func TestAPodIsForgottenWithItsLastRule(t *testing.T) {
	t.Parallel()

	root := t.TempDir()
	makeRules(t, root, "blkio")
	top := makeRules(t, root, "blkio", "kubepods", "poda")

	limiter := NewLimiter(root, slog.New(slog.DiscardHandler))
	defer func() { require.NoError(t, limiter.Close()) }()

	first, second := Device{Major: 7, Minor: 1}, Device{Major: 7, Minor: 2}

	require.NoError(t, limiter.Set("a", first, Limits{ReadIOPS: 1}))
	require.NoError(t, limiter.Set("a", second, Limits{ReadIOPS: 2}))
	require.Equal(t, map[Device]Limits{first: {ReadIOPS: 1}, second: {ReadIOPS: 2}}, limiter.v1.pods["a"].rules, "the rules of the pod")
	require.NoError(t, limiter.Remove("a", first))
	require.Equal(t, map[Device]Limits{second: {ReadIOPS: 2}}, limiter.v1.pods["a"].rules, "the rules of the pod")
	require.NotEmpty(t, limiter.v1.watcher.Directories(), "want: a pod with a rule is watched")

	// A limit that cannot be set leaves the former rule.
	missing := filepath.Join(top, ruleFiles[3])
	require.NoError(t, os.Remove(missing))
	require.Error(t, limiter.Set("a", second, Limits{WriteIOPS: 3}), "want: a missing file is an error in the pod's own cgroup")
	require.Equal(t, map[Device]Limits{second: {ReadIOPS: 2}}, limiter.v1.pods["a"].rules, "the rules of the pod")

	require.NoError(t, os.WriteFile(missing, nil, 0o600))
	require.NoError(t, limiter.Remove("a", second))
	require.NotContains(t, limiter.v1.pods, "a", "want: a pod without a rule is forgotten")
	require.Empty(t, limiter.v1.watcher.Directories(), "want: a pod without a rule is not watched")
}

package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

func TestOnlyUIDsOfPodsAreAccepted(t *testing.T) {
	t.Parallel()

	for uid, want := range map[string]bool{
		"": false, "-": false, "-a": false, "a": true, "0": true, "A-z9": true, "a-": true, "a_b": false, "a/b": false, ".": false,
		strings.Repeat("a", maxPodUID-1): true, strings.Repeat("a", maxPodUID): true, strings.Repeat("a", maxPodUID+1): false,
	} {
		require.Equal(t, want, isPodUID(uid), "%q is a pod's UID", uid)
	}
}

// TestSearchDepthIsLimited: what is as far down as the search goes is found, and nothing below.
func TestSearchDepthIsLimited(t *testing.T) {
	t.Parallel()

	for depth, want := range map[int]error{1: nil, maxDepth - 1: nil, maxDepth: nil, maxDepth + 1: ErrNoPod} {
		base := t.TempDir()
		path := filepath.Join(base, strings.Repeat("/above", depth-1), "podx")
		require.NoError(t, os.MkdirAll(path, 0o700))

		found, err := searchPod(base, "x")
		require.ErrorIs(t, err, want, "depth %d", depth)

		if want == nil {
			require.Equal(t, path, found)
		}
	}
}

// TestSearchBreadthIsLimited: a pod in the last directory within the limit is found.
func TestSearchBreadthIsLimited(t *testing.T) {
	t.Parallel()

	base := testpool.InMemory(t)
	for i := range maxDirectories {
		require.NoError(t, os.Mkdir(filepath.Join(base, fmt.Sprintf("%04d", i)), 0o700))
	}

	path := filepath.Join(base, "0000", "podx")
	require.NoError(t, os.Mkdir(path, 0o700))

	found, err := searchPod(base, "x")
	require.NoError(t, err)
	require.Equal(t, path, found)

	require.NoError(t, os.Mkdir(filepath.Join(base, "one more"), 0o700))

	_, err = searchPod(base, "x")
	require.ErrorIs(t, err, ErrNoPod)
	errtext.Require(t, err, fmt.Sprint("among the first ", maxDirectories, " cgroups"))
}

// TestDeviceLineIsFound, and that of no other device.
func TestDeviceLineIsFound(t *testing.T) {
	t.Parallel()

	cgroup, device := t.TempDir(), Device{Major: 7, Minor: 5}

	for text, want := range map[string][]string{
		"":                        nil,
		"7:5":                     nil,
		"7:5 1":                   {"1"},
		"7:5 1 2\n":               {"1", "2"},
		"7:50 1\n17:5 2\n7:5 3\n": {"3"},
		"7:50 1\n":                nil,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(cgroup, "rule"), []byte(text), 0o600))

		got, err := readRule(cgroup, "rule", device)
		require.NoError(t, err)
		require.Equal(t, want, got, text)
	}
}

// TestLimitsThatCannotBeReadAreAnError, wherever they stand in the line.
func TestLimitsThatCannotBeReadAreAnError(t *testing.T) {
	t.Parallel()

	cgroup, device := t.TempDir(), Device{Major: 7, Minor: 5}

	for text, want := range map[string]Limits{
		"7:5 rbps=1 wbps=2 riops=max wiops=4": {ReadBytesPerSecond: 1, WriteBytesPerSecond: 2, WriteIOPS: 4},
		"7:5 rbps=x wbps=2 riops=3 wiops=4":   {},
		"7:5 rbps=1 wbps=2 riops=3 wiops=":    {},
	} {
		require.NoError(t, os.WriteFile(filepath.Join(cgroup, ruleFile), []byte(text), 0o600))

		got, err := v2{}.get(cgroup, device)
		require.Equal(t, want == Limits{}, err != nil, "%s: %v", text, err)
		require.Equal(t, want, got, text)
	}
}

// TestCgroupsOfAPodAreItsOwn, and those beneath.
func TestCgroupsOfAPodAreItsOwn(t *testing.T) {
	t.Parallel()

	for path, want := range map[string]bool{"/a/pod1": true, "/a/pod1/c": true, "/a/pod10": false, "/a": false, "/a/pod": false} {
		require.Equal(t, want, (&pod{top: "/a/pod1"}).has(path), path)
	}
}

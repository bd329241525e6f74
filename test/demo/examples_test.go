package demo_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/child"
)

// example is a shell in which the commands of the examples work.
type example struct {
	t   *testing.T
	dir string
	env []string
}

func needTools(t *testing.T, tools ...string) {
	t.Helper()

	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("the examples need ", tool)
		}
	}
}

// newExample serves a pool in which copies are instant. Whatever the example
// leaves mounted is taken away.
func newExample(t *testing.T) *example {
	t.Helper()

	needTools(t, "bash", "jq")

	dir := workDir(t)
	e := &example{t: t, dir: dir}
	endpoint := startDriver(t, dir, "--pool-image-size", "2Gi")

	require.Eventually(t, func() bool {
		return exec.Command(binary, "ctl", "--endpoint", endpoint, "capabilities").Run() == nil
	}, waitLimit, waitStep, "want: the driver is ready")
	t.Cleanup(e.tidy)

	e.env = append(os.Environ(), "T="+dir, "TOUCHSTONE_ENDPOINT="+endpoint,
		"PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH")+":/usr/sbin:/sbin")

	return e
}

// tidy takes away what a failed example has left in use, while the driver runs.
func (e *example) tidy() {
	kubelet := filepath.Join(e.dir, "kubelet")

	places, err := filepath.Glob(filepath.Join(kubelet, "stage", "*"))
	require.NoError(e.t, err)

	for _, staging := range places {
		target := filepath.Join(kubelet, "pods", filepath.Base(staging))
		// Which of the volumes it is does not matter: none minds one too many.
		script := `for id in $(touchstone ctl volume list -o json | jq -r '.entries[].volume.volume_id'); do
			touchstone ctl volume unpublish $id --staging "$1" --target "$2" || true; done`
		command := child.Command(e.t, "bash", "-c", script, "bash", staging, target)
		command.Env = e.env

		if out, err := command.CombinedOutput(); err != nil || e.t.Failed() {
			e.t.Logf("unpublish %s: %v\n%s", target, err, out)
		}
	}

	require.NoError(e.t, removeUnmounted(kubelet))
}

// removeUnmounted removes directories and files that are empty: no data is lost
// by it, whatever is still mounted.
func removeUnmounted(root string) error {
	var all []string

	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		all = append(all, path)

		return err
	})

	for _, path := range slices.Backward(all) {
		err = errors.Join(err, os.Remove(path))
	}

	return err
}

// sh runs a script, which stops at the first command that fails.
func (e *example) sh(script string, args ...string) string {
	e.t.Helper()

	ctx, cancel := context.WithTimeout(e.t.Context(), time.Minute)
	defer cancel()

	command := exec.CommandContext(ctx, "bash", append([]string{"-euo", "pipefail", "-c", script, "bash"}, args...)...)
	command.Dir = "../.."
	command.Env = e.env

	out, err := command.CombinedOutput()
	require.NoError(e.t, err, "%s\n%s", script, out)

	return string(out)
}

// scriptOf returns the blocks of a page but the first, which is the driver's own terminal.
func scriptOf(t *testing.T, page []byte) string {
	t.Helper()

	blocks := fencedBlock.FindAllStringSubmatch(string(page), -1)
	require.Greater(t, len(blocks), 2, "want: the page has several examples")

	var script strings.Builder
	for _, block := range blocks[1:] {
		script.WriteString(block[2] + "\n")
	}

	return script.String()
}

// TestTheCtlExampleWorks runs the commands of examples/ctl.md, as they stand there.
func TestTheCtlExampleWorks(t *testing.T) {
	e := newExample(t)

	page, err := os.ReadFile("../../examples/ctl.md")
	require.NoError(t, err)

	out := e.sh(scriptOf(t, page))
	require.Contains(t, out, "FAILED_PRECONDITION")
	require.Contains(t, out, "BackingFileMissing")
	require.Contains(t, out, "notes is mounted at "+e.dir+"/kubelet/notes\n")
	require.Contains(t, out, "notes is unmounted from "+e.dir+"/kubelet/notes\ndeleted notes\n")
	require.Contains(t, out, "Capacity:     448 MiB\nNode's part:  done\n")
}

// The commands of examples/snapshots.md, as they stand there.
func TestTheSnapshotExampleWorks(t *testing.T) {
	e := newExample(t)

	page, err := os.ReadFile("../../examples/snapshots.md")
	require.NoError(t, err)

	out := e.sh(scriptOf(t, page))
	t.Log(out)

	require.Contains(t, out, "one\ntwo\n", "the snapshot's file, and its source's")
	require.Len(t, regexp.MustCompile(`(?m)^OFFSET +LENGTH\n\d+ +\d+$`).FindAllString(out, -1), 2, "allocated and changed ranges")
	require.Regexp(t, `(?m)^/dev/loop\d+ +\d+`, out, "df of the larger one")
	require.Contains(t, out, "INVALID_ARGUMENT")
	require.Contains(t, out, "KIND  NAME  DONE  FOR")

	for _, list := range [][]string{{"volume", "list"}, {"snapshot", "list"}} {
		require.Equal(t, "[]", e.sh(`touchstone ctl "$@" -o json | jq -cj .entries`, list...))
	}
}

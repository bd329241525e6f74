package demo_test

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fencedBlock matches a fenced block of a page, and its language.
var fencedBlock = regexp.MustCompile("(?m)^```([^\\n]*)\\n((?s:.*?)\\n)```$")

// aCO stands for the command that a reader tests: it repeats the call until it succeeds.
const aCO = "#!/bin/sh\nuntil touchstone ctl volume create data --size 64Mi --timeout 1s; do :; done\n"

// TestShellBlocksWithADriver runs each block of a page that starts a driver and calls it, as it is
// printed, unless it needs a cluster.
func TestShellBlocksWithADriver(t *testing.T) {
	const repository = "../.."

	needTools(t, "bash", "jq")

	ran := map[string]int{}

	require.NoError(t, filepath.WalkDir(repository, func(path string, entry fs.DirEntry, err error) error {
		if entry != nil && entry.IsDir() && path == filepath.Join(repository, "out") {
			return filepath.SkipDir // what make has made, for one user
		}

		if err != nil || filepath.Ext(path) != ".md" || !entry.Type().IsRegular() {
			return err
		}

		page, err := os.ReadFile(path)
		if err != nil {
			return err
		}

		for _, match := range fencedBlock.FindAllStringSubmatch(string(page), -1) {
			language, script := match[1], match[2]
			if language != "" && language != "sh" || !strings.Contains(script, "touchstone serve") || !strings.Contains(script, "touchstone ctl") || strings.Contains(script, "kubectl") {
				continue
			}

			name, err := filepath.Rel(repository, path)
			require.NoError(t, err)

			ran[name]++

			t.Run(name, func(t *testing.T) { runAsPrinted(t, repository, script) })
		}

		return nil
	}))

	for _, page := range []string{"docs/testing-your-co.md", "docs/faults.md", "docs/strict.md"} {
		require.Contains(t, ran, page)
	}
}

func runAsPrinted(t *testing.T, directory, script string) {
	t.Helper()

	dir := t.TempDir()
	require.NoError(t, os.Symlink(binary, filepath.Join(dir, "touchstone")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "your-co"), []byte(aCO), 0o700))

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	// A driver that a block leaves running is killed with the group of the shell.
	command := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script+"\nwait\n")
	command.Dir = directory
	// A block that names no directories must not use those of the machine.
	command.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "TMPDIR="+dir,
		"TOUCHSTONE_STATE_DIR="+filepath.Join(dir, "state"), "TOUCHSTONE_POOL=default="+filepath.Join(dir, "pool"))
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }

	command.WaitDelay = time.Second

	out, err := command.CombinedOutput()
	_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL) // What has ended is ESRCH.

	require.NoError(t, err, "%s\n%s", script, out)
}

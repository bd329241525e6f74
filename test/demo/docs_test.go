package demo_test

import (
	"cmp"
	"context"
	"fmt"
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

	"github.com/touchstone-csi/touchstone/test/child"
)

// fencedBlock matches a fenced block of a page, and its language.
var fencedBlock = regexp.MustCompile("(?m)^```([^\\n]*)\\n((?s:.*?)\\n)```$")

// indentedCommand matches the first line of an indented block if that is a command.
var indentedCommand = regexp.MustCompile(`\n\n {4}(?:sudo |touchstone |make |go |kubectl |export )`)

// aCO stands for the command that a reader tests: it repeats the call until it succeeds.
const aCO = "#!/bin/sh\nuntil touchstone ctl volume create data --size 64Mi --timeout 1s; do sleep 0.1; done\n"

// ownTests are the tests of pages whose blocks have the mark own: together they are one script.
var ownTests = map[string]string{
	"examples/ctl.md": "examples_test.go", "examples/snapshots.md": "examples_test.go",
	"examples/one-machine.md": "../vm/walk_test.go",
	"docs/embedded-pool.md":   "../driver/pools/poolimage_test.go",
}

// TestShellBlocks runs each block of each page, as it is printed. The word after sh says what one needs that is not
// run here: driver, one that runs and has the volume data in use; own, a test of its own; cluster, where make
// e2e-install runs it; machine, which it changes (TestMachineBlocks runs it); make, the time of a target. Of the last
// three the files, targets, commands and flags are checked.
func TestShellBlocks(t *testing.T) {
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

		name, err := filepath.Rel(repository, path)
		require.NoError(t, err)

		require.NotRegexp(t, indentedCommand, string(page), "want: %s has commands in blocks with fences", name)

		machines := 0

		for i, match := range fencedBlock.FindAllStringSubmatch(string(page), -1) {
			language, mark, _ := strings.Cut(match[1], " ")
			if language == "" {
				require.NotRegexp(t, `^(touchstone|make|go|kubectl|sudo|export) `, match[2], "want: %s has commands in a block of sh", name)
			}

			if language == "sh" {
				ran[mark]++

				if mark == "machine" {
					machines++

					if !isUnrun(name, machines) {
						require.FileExists(t, pageScript(name), "want: a script that runs block %d of %s, or a reason in unrunBlocks", machines, name)
					}
				}

				// Not #1 for a second one of that name: the path of a socket is a URL.
				t.Run(fmt.Sprintf("%s %d", name, i), func(t *testing.T) {
					t.Parallel()
					testBlock(t, repository, name, mark, match[2])
				})
			}
		}

		return nil
	}))

	require.Greater(t, ran[""], 2, "want: blocks that run as they are printed")
}

func testBlock(t *testing.T, repository, page, mark, script string) {
	t.Helper()

	switch mark {
	case "":
		runAsPrinted(t, repository, script)
	case "driver":
		runAsPrinted(t, repository, aDriver+script+"\nkill $!")
	case "own":
		text, err := os.ReadFile(ownTests[page])
		require.NoError(t, err, "want: the test of the blocks of %s", page)
		require.Contains(t, string(text), page)
	case "cluster":
		if filepath.Base(filepath.Dir(filepath.Dir(page))) != "examples" { // the step examples runs those
			text, err := os.ReadFile(filepath.Join(repository, "test", "e2e", "install", "pages.sh"))
			require.NoError(t, err)
			require.Contains(t, string(text), "page "+page, "want: make e2e-install runs the blocks of %s", page)
		}

		requireWhatItNames(t, repository, script)
	case "machine", "make":
		requireWhatItNames(t, repository, script)
	default:
		t.Fatalf("unknown mark %q of a block of %s", mark, page)
	}
}

// aDriver is the driver of blocks with the mark driver.
const aDriver = `export CSI_ENDPOINT=unix://$TMPDIR/csi.sock
touchstone serve --simulate-node --enable-faults --call-log ring --strict &
touchstone ctl volume create data --size 64Mi --wait 10s
touchstone ctl volume publish data --staging $TMPDIR/staging --target $TMPDIR/target
`

var (
	// namedFile is a file of the repository, unless a shell makes its name.
	namedFile = regexp.MustCompile(`(?:^|[\s'.])((?:deploy/[\w.-]+|examples|hack|test)/[\w./-]+)`)
	// target is one of the Makefile, and program a call of touchstone with its words before the first argument.
	target  = regexp.MustCompile(`(?m)^(?:\w+=\S+ )*make ([a-z0-9-]+)`)
	program = regexp.MustCompile(`(?m)(?:^|sudo |-- |\| |=\$\()touchstone((?: [a-z][a-z-]*)*)([^|#\n]*(?:\\\n[^|#\n]*)*)`)
	option  = regexp.MustCompile(`\s(--[a-z-]+)`)
)

// requireWhatItNames checks a block that cannot be run here.
func requireWhatItNames(t *testing.T, repository, script string) {
	t.Helper()

	check := exec.CommandContext(t.Context(), "bash", "-n", "-c", script)
	out, err := check.CombinedOutput()
	require.NoError(t, err, "%s\n%s", script, out)

	for _, named := range namedFile.FindAllStringSubmatch(script, -1) {
		require.FileExists(t, existing(filepath.Join(repository, named[1])), "want: the file %s of\n%s", named[1], script)
	}

	makefile, err := os.ReadFile(filepath.Join(repository, "Makefile"))
	require.NoError(t, err)

	for _, named := range target.FindAllStringSubmatch(script, -1) {
		require.Regexp(t, `(?m)^`+named[1]+`:`, string(makefile), "want: the target %s", named[1])
	}

	for _, call := range program.FindAllStringSubmatch(script, -1) {
		help := child.Command(t, binary, append(strings.Fields(cmp.Or(call[1], "serve")), "--help")...)
		out, err := help.CombinedOutput()
		require.NoError(t, err, "%s\n%s", call[0], out)

		for _, flag := range option.FindAllStringSubmatch(call[2], -1) {
			require.Contains(t, string(out), flag[1]+" ", "want: the flag %s of touchstone%s", flag[1], call[1])
		}
	}
}

// existing returns the path, or of a directory a file in it.
func existing(path string) string {
	if entries, err := os.ReadDir(path); err == nil && len(entries) > 0 {
		return existing(filepath.Join(path, entries[0].Name()))
	}

	return path
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
		"TOUCHSTONE_STATE_DIR="+filepath.Join(dir, "state"), "TOUCHSTONE_POOL=default="+filepath.Join(dir, "pool"),
		"TOUCHSTONE_KUBELET_DIR="+dir)
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }

	command.WaitDelay = time.Second

	out, err := command.CombinedOutput()
	_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL) // What has ended is ESRCH.

	require.NoError(t, err, "%s\n%s", script, out)
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// testTimeout is how long tests may run without a mutant.
	testTimeout = 10 * time.Minute
	// slack is how much longer than three times as long as without one they may run with a mutant.
	slack = time.Minute
	// buildTimeout is how long building them may take.
	buildTimeout = 20 * time.Minute
	// waitDelay is how long output of a killed command is awaited.
	waitDelay = 10 * time.Second
)

// build is a set of test binaries with the same mutants in them.
type build struct {
	root, dir string
	// flags is GOFLAGS with the overlay, which tests that build binaries inherit.
	flags string
	// names are the mutants that are in it; without one selected it is as it was.
	names map[string]bool
	// copies are the files of the module by the paths of what replaces them.
	copies map[string]string
	// binaries are by their packages.
	binaries map[string]string
	building sync.Mutex
	// without is what is known of tests without a mutant.
	without *baselines
	// turns are mutexes by packages: tests of one package use the same loop devices in each process.
	turns *sync.Map
}

// newBuild writes the files, which are by their paths from root, and has the go
// command take them in place of those that are there.
func newBuild(root string, files map[string][]byte, names map[string]bool) (*build, error) {
	dir, err := os.MkdirTemp("", "mutation-")
	if err != nil {
		return nil, fmt.Errorf("make a directory: %w", err)
	}

	replaced := map[string]string{}
	b := &build{root: root, dir: dir, names: names, copies: map[string]string{}, binaries: map[string]string{}, without: &baselines{}, turns: &sync.Map{}}

	for path, text := range files {
		copied := filepath.Join(dir, fmt.Sprintf("%d.go", len(replaced)))
		replaced[filepath.Join(root, path)], b.copies[copied] = copied, path
		err = errors.Join(err, os.WriteFile(copied, text, 0o600))
	}

	encoded, encodeErr := json.Marshal(map[string]map[string]string{"Replace": replaced})
	overlay := filepath.Join(dir, "overlay.json")

	err = errors.Join(err, encodeErr, os.WriteFile(overlay, encoded, 0o600))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("write the overlay: %w", err), b.remove())
	}

	b.flags = strings.TrimSpace(os.Getenv("GOFLAGS") + " -overlay=" + overlay)

	return b, nil
}

func (b *build) remove() error {
	return os.RemoveAll(b.dir)
}

// compiles returns what the compiler says against packages, "" for nothing.
func (b *build) compiles(ctx context.Context, pkgs ...string) (string, error) {
	// -e has the compiler report all errors of a package, not only the first ten.
	output, err := b.run(ctx, buildTimeout, b.root, nil, "go", append([]string{"build", "-gcflags=-e"}, pkgs...)...)
	if errors.As(err, new(*exec.ExitError)) {
		return output, nil
	}

	return "", err
}

// binary returns the test binary of a package, which it builds at first.
func (b *build) binary(ctx context.Context, pkg string) (string, error) {
	b.building.Lock()
	defer b.building.Unlock()

	if path, ok := b.binaries[pkg]; ok {
		return path, nil
	}

	path := filepath.Join(b.dir, strings.NewReplacer("/", "-", ".", "").Replace(pkg)+".test")

	// Without what only a debugger reads, which takes time to link.
	output, err := b.run(ctx, buildTimeout, b.root, nil, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-o", path, pkg)
	if err != nil {
		return "", fmt.Errorf("build the tests of %s: %w: %s", pkg, err, oneLine(output))
	}

	b.binaries[pkg] = path

	return path, nil
}

// test runs tests with a mutant, or "" for none, and says what became of them.
func (b *build) test(ctx context.Context, tests command, selected string, env ...string) (verdict, error) {
	binary, err := b.binary(ctx, tests.pkg)
	if err != nil {
		return verdict{}, err
	}

	turn, _ := b.turns.LoadOrStore(tests.pkg, &sync.Mutex{})
	turn.(*sync.Mutex).Lock()
	defer turn.(*sync.Mutex).Unlock()

	limit := b.without.limit(tests)

	// Somewhat more than the tests give themselves.
	output, err := b.run(ctx, limit+time.Minute, filepath.Join(b.root, tests.pkg), append(env, variable+"="+selected),
		"go", "tool", "test2json", binary, "-test.v=test2json",
		"-test.timeout", limit.String(), "-test.failfast", "-test.run", tests.run)
	if err != nil && !errors.As(err, new(*exec.ExitError)) && !errors.Is(err, context.DeadlineExceeded) {
		return verdict{}, err
	}

	return judge(output, err == nil)
}

// run runs a command in a process group of its own, so that a timeout ends the
// processes of tests too.
func (b *build) run(ctx context.Context, limit time.Duration, dir string, env []string, name string, args ...string) (string, error) {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()

	var output bytes.Buffer

	command := exec.CommandContext(limited, name, args...)
	command.Dir = dir
	command.Env = append(append(os.Environ(), "GOFLAGS="+b.flags), env...)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = waitDelay
	command.Stdout = &output
	command.Stderr = &output

	err := command.Run()

	switch {
	case ctx.Err() != nil:
		return output.String(), fmt.Errorf("%s: %w", name, context.Cause(ctx))
	case limited.Err() != nil:
		return output.String(), fmt.Errorf("%s: %w", name, limited.Err())
	case err != nil && !errors.As(err, new(*exec.ExitError)):
		return output.String(), fmt.Errorf("run %s: %w", name, err)
	default:
		return output.String(), err // an exit status: what it means is in the output
	}
}

// packages are those that the mutants are in.
func packages(mutants []mutant) []string {
	var all []string
	for _, m := range mutants {
		all = append(all, "./"+filepath.Dir(m.file))
	}

	slices.Sort(all)

	return slices.Compact(all)
}

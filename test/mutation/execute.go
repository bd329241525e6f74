package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const (
	// testTimeout is how long a mutant's tests may run.
	testTimeout = 2 * time.Minute
	// buildTimeout is how long building them may take in addition.
	buildTimeout = 20 * time.Minute
	// waitDelay is how long output of a killed command is awaited.
	waitDelay = 10 * time.Second
)

// goCommand runs the go command in root with an overlay, if there is one. It has
// a process group of its own, so that a timeout ends the tests' processes too.
func goCommand(ctx context.Context, root, overlay string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, testTimeout+buildTimeout)
	defer cancel()

	command := exec.CommandContext(ctx, "go", args...)
	command.Dir = root
	command.Env = os.Environ()
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = waitDelay

	if overlay != "" {
		flags := strings.TrimSpace(os.Getenv("GOFLAGS") + " -overlay=" + overlay)
		command.Env = append(command.Env, "GOFLAGS="+flags)
	}

	var output bytes.Buffer

	command.Stdout = &output
	command.Stderr = &output
	err := command.Run()

	if ctx.Err() != nil {
		return output.String(), fmt.Errorf("go %s: %w", args[0], context.Cause(ctx))
	}

	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return output.String(), fmt.Errorf("run the go command: %w", err)
	}

	return output.String(), err //nolint:wrapcheck // an exit status: what it means is in the output
}

// test runs the tests and returns what became of them.
func test(ctx context.Context, root, overlay string, tests command, args ...string) (verdict, error) {
	// Without vet, which a defect may displease, and without what only a
	// debugger reads, which takes time to link.
	args = append([]string{
		"test", "-json", "-vet=off", "-ldflags=-s -w", "-failfast",
		"-timeout", testTimeout.String(), "-run", tests.run,
	}, append(args, tests.pkg)...)

	output, err := goCommand(ctx, root, overlay, args...)

	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return verdict{}, err
	}

	return judge(output, err == nil)
}

// baseline checks that what should fail with a defect passes without one. The go
// command remembers tests that passed, so this costs time only once.
func baseline(ctx context.Context, root string, mutants []mutant) error {
	checked := map[command]bool{}

	for _, m := range mutants {
		if checked[m.tests] {
			continue
		}

		checked[m.tests] = true

		v, err := test(ctx, root, "", m.tests)

		switch {
		case err != nil:
			return err
		case v.outcome != survived:
			return fmt.Errorf("without a defect %s does not pass: %s by %s: %s", m.tests, v.outcome, v.test, v.message)
		case v.ran == 0:
			return fmt.Errorf("%s: %s ran no test", m.name, m.tests)
		}
	}

	return nil
}

// try builds and tests one mutant.
func try(ctx context.Context, root string, m mutant) (verdict, error) {
	dir, err := os.MkdirTemp("", "mutation-")
	if err != nil {
		return verdict{}, fmt.Errorf("make a directory: %w", err)
	}

	defer os.RemoveAll(dir)

	overlay, err := m.overlay(root, dir)
	if errors.Is(err, errStale) {
		return verdict{outcome: stale, message: err.Error()}, nil
	}

	if err != nil {
		return verdict{}, err
	}

	pkg := "./" + m.file[:strings.LastIndexByte(m.file, '/')]

	output, err := goCommand(ctx, root, overlay, "build", "-o", os.DevNull, pkg)

	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return verdict{outcome: broken, message: oneLine(output)}, nil
	}

	if err != nil {
		return verdict{}, err
	}

	return test(ctx, root, overlay, m.tests, "-count=1")
}

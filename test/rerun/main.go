// Command rerun runs go test and repeats once, alone, what failed: a test that
// then passes is listed as flaky and does not fail the run. A race, a panic, a leak and a timeout are
// never repeated: they are defects even if they come once in a hundred runs.
//
//	rerun [-flaky FILE] [-limit DURATION] [-skips FILE -environment NAME] [flags of go test] [packages]
//	rerun [-flaky FILE] [-limit DURATION] -command COMMAND package
//
// The second form has a command run the tests of a package: it takes the flags of a test binary, and
// prints what one prints with -test.v.
//
// Flags of go test have the form -name=value, because an argument without a dash is
// a package. Neither is a package repeated whose failure no single test explains: a signal, or
// TestMain. Nothing is repeated if more than ten failed, or if one does not build.
//
// At the end it lists the packages and the tests that took longest.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"gotest.tools/gotestsum/testjson"
)

const (
	// most is how many failures are repeated: more of them are no coincidence.
	most = 10
	// repeatTimeout is the most that one repetition may take, shortest the least
	// that is worth a start.
	repeatTimeout = 10 * time.Minute
	shortest      = 10 * time.Second
	// slowest is how many packages, and how many tests, are listed as those that took longest.
	slowest = 10
)

// run is one call of this command.
type run struct {
	// command runs tests instead of go test.
	command         string
	flags, packages []string
	// deadline is when no repetition runs any more.
	deadline  time.Time
	directory string
	out       io.Writer
	execution *testjson.Execution
}

func main() {
	flaky := flag.String("flaky", "", "append what was flaky to this file, a line each")
	budgets := flag.String("skips", "", "the file with the tests that may be skipped, by environment and reason")
	environment := flag.String("environment", "root", "the environment in that file")
	command := flag.String("command", "", "run this command instead of go test")
	limit := flag.Duration("limit", 40*time.Minute, "end repetitions so long after the start")

	arguments := ours(os.Args[1:])
	if err := flag.CommandLine.Parse(arguments); err != nil {
		os.Exit(2)
	}

	r := &run{command: *command, deadline: time.Now().Add(*limit), out: os.Stdout}
	r.accept(os.Args[1+len(arguments):])

	found, err := r.all(context.Background())

	if *budgets != "" && r.execution != nil {
		allowed, readErr := readBudget(*budgets, *environment)
		if err = errors.Join(err, readErr); readErr == nil {
			err = errors.Join(err, r.account(allowed))
		}
	}

	if err := errors.Join(err, list(*flaky, "flaky: ", found)); err != nil {
		fmt.Fprintln(os.Stderr, "rerun:", err)
		os.Exit(1)
	}
}

// ours returns the arguments that are this command's: the first ones.
func ours(arguments []string) []string {
	for i, argument := range arguments {
		name, _, _ := strings.Cut(argument, "=")
		if !slices.Contains([]string{"-flaky", "-limit", "-skips", "-environment", "-command"}, name) {
			return arguments[:i]
		}
	}

	return arguments
}

func (r *run) accept(arguments []string) {
	for _, argument := range arguments {
		if strings.HasPrefix(argument, "-") {
			r.flags = append(r.flags, argument)
		} else {
			r.packages = append(r.packages, argument)
		}
	}
}

// all returns what was flaky, and an error if a test failed twice.
func (r *run) all(ctx context.Context) ([]string, error) {
	first, failure := r.test(ctx, 0, r.arguments(r.packages...)...)
	defer func() {
		testjson.PrintSummary(r.out, r.execution, testjson.SummarizeFailed|testjson.SummarizeErrors)
		r.printSlowest()
	}()

	if failure == nil {
		return nil, nil
	}

	repeated := first.failures(r.execution)
	r.printPackages(repeated)

	if len(repeated) == 0 || len(repeated) > most || first.unbuilt {
		return nil, fmt.Errorf("%d failures, none repeated: %w", len(repeated), failure)
	}

	var flaky []string

	for i, each := range repeated {
		if each.final != "" {
			failure = fmt.Errorf("%s: %s: not repeated: %w", each, each.final, failure)
			fmt.Fprintf(r.out, "not repeated: %s: %s\n", each, each.final)

			continue
		}

		fmt.Fprintf(r.out, "\n=== Repeat %s\n", each)

		if err := r.repeat(ctx, i+1, each); err != nil {
			failure = fmt.Errorf("%s failed twice: %w", each, err)
			fmt.Fprintln(r.out, "failed twice:", each)
		} else {
			flaky = append(flaky, each.String())
			fmt.Fprintln(r.out, "flaky:", each)
		}
	}

	if len(flaky) < len(repeated) {
		return flaky, failure
	}

	return flaky, nil
}

// printPackages prints the output that belongs to no test: the formatter prints a
// failed test's only, and a timeout's goroutines are not a test's.
func (r *run) printPackages(among []failed) {
	for _, each := range among {
		if each.test == "" {
			fmt.Fprintf(r.out, "\n=== Output of %s\n", each)
			_ = r.execution.Package(each.in).WriteOutputTo(printer{r.out}, 0)
		}
	}
}

// printSlowest prints which packages and tests took longest: the next one to be made faster is among
// them. A test's subtests count in it.
func (r *run) printSlowest() {
	type timed struct {
		took time.Duration
		name string
	}

	var packages, tests []timed

	for _, name := range r.execution.Packages() {
		of := r.execution.Package(name)
		packages = append(packages, timed{of.Elapsed(), name})

		for _, test := range slices.Concat(of.Passed, of.Failed) {
			if !test.Test.IsSubTest() {
				tests = append(tests, timed{test.Elapsed, name + "." + test.Test.Name()})
			}
		}
	}

	for _, all := range [][]timed{packages, tests} {
		slices.SortStableFunc(all, func(a, b timed) int { return cmp.Compare(b.took, a.took) })

		for _, each := range all[:min(len(all), slowest)] {
			fmt.Fprintf(r.out, "slow: %.0f s %s\n", each.took.Seconds(), each.name)
		}
	}
}

func (r *run) repeat(ctx context.Context, number int, each failed) error {
	left := time.Until(r.deadline)
	if left < shortest {
		return fmt.Errorf("not repeated: the limit is over: %w", context.DeadlineExceeded)
	}

	arguments := r.arguments("-count=1", "-timeout="+min(left, repeatTimeout).String(), "-run=^"+each.test+"$", each.in)
	if r.command != "" {
		arguments = append(r.arguments(), "-test.run=^"+each.test+"$")
	}

	_, err := r.test(ctx, number, arguments...)

	return err
}

// arguments are those of the go command that runs tests, with more that go test takes.
func (r *run) arguments(more ...string) []string {
	if r.command != "" {
		return []string{"tool", "test2json", "-p", strings.Join(r.packages, " "), r.command}
	}

	return slices.Concat([]string{"test", "-json"}, r.flags, more)
}

// test runs the go command, which prints the events of tests.
func (r *run) test(ctx context.Context, number int, arguments ...string) (*watcher, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()

	command := exec.CommandContext(ctx, "go", arguments...)
	command.Dir = r.directory

	stdout, err := command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("go test: %w", err)
	}

	command.Stderr = os.Stderr

	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("go test: %w", err)
	}

	watching := newWatcher(r.out)

	execution, err := testjson.ScanTestOutput(testjson.ScanConfig{
		RunID: number, Stdout: stdout, Handler: watching, Execution: r.execution, IgnoreNonJSONOutputLines: true,
		Stop: stop, // the command would wait for ever for what nothing reads any more
	})
	r.execution = execution

	if ended := command.Wait(); err == nil && ended != nil {
		err = fmt.Errorf("go test: %w", ended)
	}

	return watching, err
}

// list appends lines to a file, unless it has no name.
func list(name, prefix string, lines []string) error {
	if name == "" || len(lines) == 0 {
		return nil
	}

	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("list tests: %w", err)
	}

	for _, line := range lines {
		_, _ = fmt.Fprintln(file, prefix+line)
	}

	if err := file.Close(); err != nil {
		return fmt.Errorf("list tests: %w", err)
	}

	return nil
}

// printer is an io.StringWriter.
type printer struct{ io.Writer }

// WriteString implements io.StringWriter.
func (p printer) WriteString(text string) (int, error) { return io.WriteString(p.Writer, text) }

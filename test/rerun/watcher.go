package main

import (
	"fmt"
	"io"
	"strings"

	"gotest.tools/gotestsum/testjson"
)

// failed is a test, or a package as a whole.
type failed struct{ in, test string }

// String returns package.Test, or the package.
func (f failed) String() string {
	if f.test == "" {
		return f.in
	}

	return f.in + "." + f.test
}

// watcher prints a run's events and remembers how packages ended.
type watcher struct {
	out       io.Writer
	formatter testjson.EventFormatter
	// complete has the packages whose tests all ran, some of which failed.
	complete map[string]bool
	unbuilt  bool
}

func newWatcher(out io.Writer) *watcher {
	options := testjson.FormatOptions{HideEmptyPackages: true}

	return &watcher{
		out: out, formatter: testjson.NewEventFormatter(out, "pkgname-and-test-fails", options), complete: map[string]bool{},
	}
}

// Event implements testjson.EventHandler.
func (w *watcher) Event(event testjson.TestEvent, execution *testjson.Execution) error {
	if event.Action == testjson.ActionOutput {
		line := strings.TrimSpace(event.Output)

		switch {
		case line == "FAIL":
			w.complete[event.Package] = true // printed where testing.M's Run returns
		case strings.HasPrefix(line, "FAIL\t") && strings.HasSuffix(line, " failed]"):
			w.unbuilt = true // [build failed] or [setup failed]
		}
	}

	if err := w.formatter.Format(event, execution); err != nil {
		return fmt.Errorf("print a test's event: %w", err)
	}

	return nil
}

// Err implements testjson.EventHandler.
func (w *watcher) Err(text string) error {
	_, err := fmt.Fprintln(w.out, text)

	return err
}

// failures returns each failed test once, or its package where that has to be
// repeated. It is for the first run: an execution keeps what failed in all of them.
func (w *watcher) failures(execution *testjson.Execution) []failed {
	var found []failed

	known := map[failed]bool{}

	for _, each := range execution.Failed() {
		one := failed{in: each.Package}
		if w.complete[each.Package] {
			one.test, _ = each.Test.Split()
		}

		if !known[one] {
			known[one] = true

			found = append(found, one)
		}
	}

	return found
}

package main

import (
	"fmt"
	"io"
	"strings"

	"gotest.tools/gotestsum/testjson"
)

// failed is a test, or a package as a whole.
type failed struct {
	in, test string
	// final is why it is not repeated: no chance of the machine explains it.
	final string
}

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
	// final has what a test, or a package with an empty name, printed that forbids a repetition.
	final   map[testID]string
	unbuilt bool
}

// testID is a test without its subtests' names, "" for the package's own output.
type testID struct{ in, test string }

// finals are what is printed by a failure that is never repeated, and its name: such a failure is a
// defect even if it comes once in a hundred runs. A text after a line feed begins a line.
var finals = []struct{ text, name string }{
	{"race detected during execution of test", "race"},
	{"WARNING: DATA RACE", "race"},
	{"\npanic: test timed out", "timeout"},
	{"\npanic: ", "panic"},
	{"\nfatal error: ", "panic"},
	{"goroutines are left", "leak"},
	{"still mounted: ", "leak"},
	{"still attached: ", "leak"},
	{" is left: ", "leak"},
}

func newWatcher(out io.Writer) *watcher {
	options := testjson.FormatOptions{HideEmptyPackages: true}

	return &watcher{
		out: out, formatter: testjson.NewEventFormatter(out, "pkgname-and-test-fails", options),
		complete: map[string]bool{}, final: map[testID]string{},
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

		w.remember(event)
	}

	if err := w.formatter.Format(event, execution); err != nil {
		return fmt.Errorf("print a test's event: %w", err)
	}

	return nil
}

// remember keeps the first text of a test that forbids its repetition.
func (w *watcher) remember(event testjson.TestEvent) {
	test, _, _ := strings.Cut(event.Test, "/")
	id := testID{event.Package, test}

	for _, each := range finals {
		if w.final[id] == "" && strings.Contains("\n"+event.Output, each.text) {
			w.final[id] = each.name
		}
	}
}

// Err implements testjson.EventHandler.
func (w *watcher) Err(text string) error {
	_, err := fmt.Fprintln(w.out, text)

	return err
}

// failures returns each failed test once, or its package where no test explains the failure. It is
// for the first run: an execution keeps what failed in all of them.
func (w *watcher) failures(execution *testjson.Execution) []failed {
	var found []failed

	known := map[testID]bool{}

	for _, each := range execution.Failed() {
		id := testID{in: each.Package}
		if w.complete[each.Package] {
			id.test, _ = each.Test.Split()
		}

		if !known[id] {
			known[id] = true

			found = append(found, failed{in: id.in, test: id.test, final: w.whyFinal(id)})
		}
	}

	return found
}

// whyFinal returns why a failure is not repeated, "" if it is a plain one. A package that ended
// without all its tests, or whose TestMain failed, is never repeated.
func (w *watcher) whyFinal(id testID) string {
	if id.test != "" {
		return w.final[id]
	}

	for known, name := range w.final {
		if known.in == id.in {
			return name
		}
	}

	return "the package ended without a failed test"
}

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gotest.tools/gotestsum/testjson"
)

const flakyTest = `package x

import ("os"; "testing")

func TestA(t *testing.T) {
	t.Run("part", func(t *testing.T) {
		if _, err := os.Stat("marker"); err != nil {
			os.WriteFile("marker", nil, 0o600)
			t.Fatal("complaint")
		}
	})
}

func TestB(t *testing.T) {
	if _, err := os.Stat("b"); err == nil { t.Fatal("repeated, but not alone") }
	os.WriteFile("b", nil, 0o600)
}
`

// TestRepeats runs small modules in which a file says that a test ran before.
func TestRepeats(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		source string
		flaky  []string
		fails  bool
		says   []string
	}{
		"pass":        {source: "package x\nimport \"testing\"\nfunc TestA(*testing.T) {}\n", says: []string{"DONE 1 tests", "slow: 0 s m\nslow: 0 s m.TestA\n"}},
		"flaky":       {source: flakyTest, flaky: []string{"m.TestA"}, says: []string{"complaint", "flaky: m.TestA\n", "DONE 2 runs"}},
		"fails twice": {source: body(`t.Fatal("complaint")`, ""), fails: true, says: []string{"complaint", "failed twice: m.TestA\n"}},
		"panics":      {source: body(`if !ran() { panic("complaint") }`, ""), fails: true, says: []string{"complaint", "not repeated: m: panic\n"}},
		"times out": {
			source: body(`if !ran() { time.Sleep(time.Hour) }`, ""), fails: true, says: []string{"test timed out", "not repeated: m: timeout\n"},
		},
		"is killed": {
			source: body(`if !ran() { syscall.Kill(os.Getpid(), 9) }`, ""), fails: true,
			says: []string{"signal: killed", "not repeated: m: the package ended without a failed test\n"},
		},
		"TestMain": {
			source: body("", `func TestMain(m *testing.M) { m.Run(); if !ran() { println("complaint"); os.Exit(1) } }`), fails: true,
			says: []string{"not repeated: m: the package ended without a failed test\n"},
		},
		"leaks goroutines": {
			source: body("", `func TestMain(m *testing.M) { m.Run(); if !ran() { println("goroutines are left: 1"); os.Exit(1) } }`), fails: true,
			says: []string{"not repeated: m: leak\n"},
		},
		"leaks a mount": {
			source: body(`if !ran() { t.Error("still mounted: /a") }`, ""), fails: true, says: []string{"not repeated: m.TestA: leak\n"},
		},
		"leaves a record": {
			source: body(`if !ran() { t.Error("record is left: volumes a") }`, ""), fails: true, says: []string{"not repeated: m.TestA: leak\n"},
		},
		"races": {
			source: body(`if !ran() { t.Error("race detected during execution of test") }`, ""), fails: true,
			says: []string{"not repeated: m.TestA: race\n"},
		},
		"one races, one is flaky": {
			source: flakyTest + `
func TestC(t *testing.T) {
	if _, err := os.Stat("c"); err != nil { t.Error("race detected during execution of test") }
	os.WriteFile("c", nil, 0o600)
}
`, flaky: []string{"m.TestA"}, fails: true, says: []string{"not repeated: m.TestC: race\n", "flaky: m.TestA\n"},
		},
		"does not build": {source: "package x\nbroken\n", fails: true, says: []string{"none repeated", "expected declaration"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			directory := t.TempDir()
			write(t, directory, "go.mod", "module m\n\ngo 1.26\n")
			write(t, directory, "x_test.go", test.source)

			var out strings.Builder

			r := &run{directory: directory, out: &out, deadline: time.Now().Add(time.Hour)}
			r.accept([]string{"-timeout=5s", "./..."})

			flaky, err := r.all(t.Context())
			said := out.String()

			if err != nil {
				said += err.Error()
			}

			if (err != nil) != test.fails || strings.Join(flaky, " ") != strings.Join(test.flaky, " ") {
				t.Errorf("flaky %q, error %v; want %q, an error: %v\n%s", flaky, err, test.flaky, test.fails, said)
			}

			for _, words := range test.says {
				if !strings.Contains(said, words) {
					t.Errorf("%q is not in the output:\n%s", words, said)
				}
			}
		})
	}
}

func TestSlowest(t *testing.T) {
	t.Parallel()

	const events = `{"Action":"pass","Package":"m/a","Test":"TestQuick","Elapsed":1}
{"Action":"pass","Package":"m/a","Test":"TestSlow/part","Elapsed":9}
{"Action":"fail","Package":"m/a","Test":"TestSlow","Elapsed":10}
{"Action":"fail","Package":"m/a","Elapsed":11}
{"Action":"pass","Package":"m/b","Test":"TestB","Elapsed":20}
{"Action":"pass","Package":"m/b","Elapsed":21}
`

	execution, err := testjson.ScanTestOutput(testjson.ScanConfig{Stdout: strings.NewReader(events)})
	if err != nil {
		t.Fatal(err)
	}

	var out strings.Builder

	(&run{out: &out, execution: execution}).printSlowest()

	want := "slow: 21 s m/b\nslow: 11 s m/a\nslow: 20 s m/b.TestB\nslow: 10 s m/a.TestSlow\nslow: 1 s m/a.TestQuick\n"
	if out.String() != want {
		t.Errorf("got:\n%swant:\n%s", &out, want)
	}
}

// TestCommand runs scripts, the second time with the flag that selects a test.
func TestCommand(t *testing.T) {
	t.Parallel()

	const fails = "echo '=== RUN   TestA'; echo '--- FAIL: TestA (0.01s)'; echo '=== RUN   TestB'; echo '--- PASS: TestB (0.01s)'; "

	for name, test := range map[string]struct {
		first  string
		flaky  []string
		fails  bool
		repeat string
		says   string
	}{
		"passes":      {first: "echo '=== RUN   TestA'; echo '--- PASS: TestA (0.01s)'; echo PASS; exit 0", says: "DONE 1 tests"},
		"flaky":       {first: fails + "echo FAIL; exit 1", flaky: []string{"m.TestA"}, repeat: "-test.run=^TestA$", says: "flaky: m.TestA\n"},
		"panics":      {first: fails + "echo 'panic: complaint'; exit 1", fails: true, says: "not repeated: m: panic\n"},
		"times out":   {first: fails + "echo 'panic: test timed out after 1m'; exit 1", fails: true, says: "not repeated: m: timeout\n"},
		"has no end":  {first: fails + "exit 1", fails: true, says: "not repeated: m: the package ended without a failed test\n"},
		"is left out": {first: "echo 'no machine'; exit 2", fails: true, says: "no machine"},
		"leaks": {
			first: "echo '=== RUN   TestA'; echo '    x.go:1: still mounted: /a'; echo '--- FAIL: TestA (0.01s)'; echo FAIL; exit 1",
			fails: true, says: "not repeated: m.TestA: leak\n",
		},
	} {
		directory := t.TempDir()
		write(t, directory, "tests", "#!/bin/sh\nif [ ! -e ran ]; then touch ran; "+test.first+
			"; fi\necho $1 >repeated; echo '=== RUN   TestA'; echo '--- PASS: TestA (0.01s)'; echo PASS\n")

		if err := os.Chmod(filepath.Join(directory, "tests"), 0o700); err != nil {
			t.Fatal(err)
		}

		var out strings.Builder

		r := &run{command: "./tests", directory: directory, out: &out, deadline: time.Now().Add(time.Hour)}
		r.accept([]string{"m"})

		flaky, err := r.all(t.Context())
		repeated, _ := os.ReadFile(filepath.Join(directory, "repeated"))

		if (err != nil) != test.fails || strings.Join(flaky, " ") != strings.Join(test.flaky, " ") || strings.TrimSpace(string(repeated)) != test.repeat {
			t.Errorf("%s: flaky %q, repeated with %q, error %v; want %q, %q, an error: %v\n%s",
				name, flaky, repeated, err, test.flaky, test.repeat, test.fails, out.String())
		}

		if !strings.Contains(out.String(), test.says) {
			t.Errorf("%s: %q is not in the output:\n%s", name, test.says, out.String())
		}
	}
}

func TestNothingIsRepeatedAfterTheLimit(t *testing.T) {
	t.Parallel()

	directory := t.TempDir()
	write(t, directory, "go.mod", "module m\n\ngo 1.26\n")
	write(t, directory, "x_test.go", flakyTest)

	r := &run{directory: directory, out: &strings.Builder{}, deadline: time.Now()}
	r.accept([]string{"./..."})

	if flaky, err := r.all(t.Context()); err == nil || !strings.Contains(err.Error(), "the limit is over") {
		t.Errorf("flaky %q, error %v; want an error that names the limit", flaky, err)
	}
}

func TestSkipsAreCountedAndBounded(t *testing.T) {
	t.Parallel()

	directory := t.TempDir()
	write(t, directory, "go.mod", "module m\n\ngo 1.26\n")
	write(t, directory, "x_test.go", `package x

import "testing"

func TestA(t *testing.T) { t.Skip("needs root") }
func TestB(t *testing.T) { t.Run("part", func(t *testing.T) { t.Skip("needs root") }) }
func TestC(t *testing.T) { t.Skip("needs a moon") }
`)

	for name, test := range map[string]struct{ budget, says string }{
		"within":         {"root\t2\troo.\nroot\t1\tmoon\n", ""},
		"over":           {"root\t1\troo.\nroot\t1\tmoon\n", "2 tests were skipped, at most 1 may be: roo."},
		"another reason": {"root\t2\tneeds root\n", `m.TestC: "needs a moon" is no reason`},
		"unknown":        {"user\t2\tneeds root\n", `no line for the environment "root"`},
	} {
		var out strings.Builder

		r := &run{directory: directory, out: &out, deadline: time.Now().Add(time.Hour)}
		r.accept([]string{"./..."})

		if _, err := r.all(t.Context()); err != nil {
			t.Fatal(err)
		}

		file := filepath.Join(t.TempDir(), "budget")
		write(t, filepath.Dir(file), "budget", "# a comment\n"+test.budget)

		allowed, err := readBudget(file, "root")
		if err == nil {
			err = r.account(allowed)
		}

		switch {
		case test.says == "" && (err != nil || !strings.HasSuffix(out.String(), "left out: 3 tests\n")):
			t.Errorf("%s: %v\n%s", name, err, out.String())
		case test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)):
			t.Errorf("%s: the error is %v, want %q", name, err, test.says)
		}
	}
}

func TestListAppends(t *testing.T) {
	t.Parallel()

	name := filepath.Join(t.TempDir(), "flaky")

	for _, each := range []string{"m.TestA", "m.TestB"} {
		if err := list(name, "flaky: ", []string{each}); err != nil {
			t.Fatal(err)
		}
	}

	if text, err := os.ReadFile(name); string(text) != "flaky: m.TestA\nflaky: m.TestB\n" {
		t.Errorf("the list is %q, %v", text, err)
	}
}

// body is a test file; its function ran is false in the first process.
func body(test, more string) string {
	return `package x

import ("os"; "syscall"; "testing"; "time")

var _, _, _ = syscall.Kill, time.Sleep, ran

func ran() bool {
	_, err := os.Stat("marker")
	os.WriteFile("marker", nil, 0o600)
	return err == nil
}

func TestA(t *testing.T) { ` + test + " }\n\n" + more + "\n"
}

func write(t *testing.T, directory, name, text string) {
	t.Helper()

	if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// full fails each write, as a full disk does.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// TestUnprintedOutputEndsTheRun, also while tests have more to print than a pipe holds.
func TestUnprintedOutputEndsTheRun(t *testing.T) {
	t.Parallel()

	directory := t.TempDir()
	write(t, directory, "go.mod", "module m\n\ngo 1.26\n")
	write(t, directory, "x_test.go", `package x

import ("strings"; "testing")

func TestA(t *testing.T) {
	for range 10 { t.Run("part", func(t *testing.T) { t.Error(strings.Repeat("x", 1<<16)) }) }
}
`)

	r := &run{directory: directory, out: full{}, deadline: time.Now().Add(time.Hour)}
	r.accept([]string{"./..."})

	if _, err := r.all(t.Context()); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("error %v; want that nothing can be printed", err)
	}
}

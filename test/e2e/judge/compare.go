package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

// outcome is what a run has shown of a spec.
type outcome string

const (
	notRun     outcome = "not run"
	hasPassed  outcome = "passed"
	hasFailed  outcome = "failed"
	wasSkipped outcome = "skipped"
)

// outcomes are those of one run.
type outcomes struct {
	of map[string]outcome
	// lines are the names with the messages of specs that have not passed.
	lines map[string]string
	// reasons count the messages of what the suite itself has skipped.
	reasons map[string]int
	// suite are failures of no spec.
	suite []string
	// selected are the specs that were to be run.
	selected int
	took     time.Duration
}

// compare prints what a run of upstream's suites has shown: spec by spec in comparison to a run with
// upstream's own image, if there is one, and the violations in the drivers' logs.
func compare(out io.Writer, args []string) error {
	flags := flag.NewFlagSet("judge compare", flag.ContinueOnError)
	report := flags.String("report", "", "ginkgo's JSON report of the run")
	baseline := flags.String("baseline", "", "that of a run with upstream's own image; without it no spec may fail")
	logs := flags.String("logs", "", "the directory that has the drivers' logs")

	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("reading the command line: %w", err)
	}

	ours, err := readOutcomes(*report)
	if err != nil {
		return err
	}

	var theirs outcomes
	if *baseline != "" {
		if theirs, err = readOutcomes(*baseline); err != nil {
			return err
		}

		theirs.printCounts(out, "upstream's own image")
	}

	ours.printCounts(out, "hostpathplugin")

	found, isWell := sortOut(ours, theirs)
	for _, what := range slices.Sorted(maps.Keys(found)) {
		for _, line := range found[what] {
			fmt.Fprintf(out, "  %s: %s\n", what, line)
		}
	}

	for _, reason := range slices.Sorted(maps.Keys(ours.reasons)) {
		fmt.Fprintf(out, "  skipped %d: %s\n", ours.reasons[reason], reason)
	}

	if *logs != "" {
		violations, err := readViolations(*logs)
		if err != nil {
			return err
		}

		violations.print(out)
	}

	if !isWell || ours.count(hasPassed) == 0 || ours.notReached() > 0 {
		return errNotWell
	}

	return nil
}

// sortOut returns the specs about which something is to be said, and whether the run is as good as the other one.
func sortOut(ours, theirs outcomes) (found map[string][]string, isWell bool) {
	found, isWell = map[string][]string{}, len(ours.suite) == 0
	if !isWell {
		found["FAILED"] = ours.suite
	}

	names := map[string]bool{}
	for _, of := range []map[string]outcome{ours.of, theirs.of} {
		for name := range of {
			names[name] = true
		}
	}

	for _, name := range slices.Sorted(maps.Keys(names)) {
		what, good := weigh(ours.outcome(name), theirs.outcome(name), theirs.of != nil)
		isWell = isWell && good

		if line := ours.lines[name]; what != "" && line != "" {
			found[what] = append(found[what], line)
		} else if what != "" {
			found[what] = append(found[what], name)
		}
	}

	return found, isWell
}

// weigh returns what is to be said about a spec, and whether the run is as good as the other one in it.
func weigh(ours, theirs outcome, compared bool) (what string, good bool) {
	switch {
	case !compared && ours == hasFailed:
		return "FAILED", false
	case !compared, ours == theirs && ours != hasFailed:
		return "", true
	case theirs == hasPassed:
		return "PASSED WITH UPSTREAM'S OWN, HERE " + strings.ToUpper(string(ours)), false
	case ours == hasFailed && theirs == hasFailed:
		return "failed with both", true
	case ours == hasFailed:
		return "FAILED, with upstream's own " + string(theirs), false
	case ours == hasPassed:
		return "passed here, with upstream's own " + string(theirs), true
	default:
		return "", true
	}
}

func readOutcomes(path string) (outcomes, error) {
	run := outcomes{of: map[string]outcome{}, lines: map[string]string{}, reasons: map[string]int{}}

	reports, err := readReports(path)
	if err != nil {
		return run, err
	}

	for _, report := range reports {
		run.took += report.RunTime
		run.selected += report.PreRunStats.SpecsThatWillRun

		for _, spec := range report.SpecReports {
			run.add(spec)
		}
	}

	return run, nil
}

func (o *outcomes) add(spec types.SpecReport) {
	name := fullName(spec)

	switch {
	case spec.LeafNodeType != types.NodeTypeIt:
		if spec.State.Is(types.SpecStateFailureStates) {
			o.suite = append(o.suite, line(spec.LeafNodeType.String(), spec))
		}
	case spec.State == types.SpecStatePassed:
		o.of[name] = hasPassed
	case spec.State.Is(types.SpecStateFailureStates):
		o.of[name], o.lines[name] = hasFailed, line(name, spec)
	case spec.Failure.Message != "":
		o.of[name], o.lines[name] = wasSkipped, line(name, spec)
		o.reasons[strings.Join(strings.Fields(spec.Failure.Message), " ")]++
	}
}

func (o *outcomes) outcome(name string) outcome {
	if of, has := o.of[name]; has {
		return of
	}

	return notRun
}

func (o *outcomes) count(wanted outcome) (count int) {
	for _, of := range o.of {
		if of == wanted {
			count++
		}
	}

	return count
}

func (o *outcomes) notReached() int { return max(o.selected-len(o.of), 0) }

func (o *outcomes) printCounts(out io.Writer, who string) {
	fmt.Fprintf(out, "%s: %d passed, %d failed, %d skipped by the suite, %d not reached, in %s\n",
		who, o.count(hasPassed), o.count(hasFailed)+len(o.suite), o.count(wasSkipped), o.notReached(), o.took.Round(time.Second))
}

// violations are what --strict has found, in the logs of drivers. The verdict at a log's end is not among
// it: the suite stops reading before.
type violations struct {
	drivers int
	// found counts the objects by what was violated, with the rows of the spec.
	found map[string]int
}

var (
	readyLine     = regexp.MustCompile(`level=INFO msg=ready endpoint=\S+ mode=`)
	violationLine = regexp.MustCompile(`msg="the CO violates the CSI spec" violation=(\S+) .*\bspec=("[^"]*"|\S+)`)
)

func readViolations(directory string) (violations, error) {
	v := violations{found: map[string]int{}}

	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".log" {
			return err
		}

		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()

		return v.read(file)
	})
	if err != nil {
		return v, fmt.Errorf("reading the logs: %w", err)
	}

	return v, nil
}

func (v *violations) read(log io.Reader) error {
	const longest = 16 << 20 // a line with a call may have megabytes

	lines := bufio.NewScanner(log)
	lines.Buffer(nil, longest)

	for lines.Scan() {
		if readyLine.MatchString(lines.Text()) {
			v.drivers++
		}

		if found := violationLine.FindStringSubmatch(lines.Text()); found != nil {
			v.found[found[1]+" ("+strings.Trim(found[2], `"`)+")"]++
		}
	}

	return lines.Err()
}

func (v *violations) print(out io.Writer) {
	fmt.Fprintf(out, "--strict: %d drivers have served, %d kinds of violations by the CO\n", v.drivers, len(v.found))

	for _, each := range slices.Sorted(maps.Keys(v.found)) {
		fmt.Fprintf(out, "  violated for %d objects: %s\n", v.found[each], each)
	}
}

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

// verdict is what a run was worth.
type verdict struct {
	driver        string
	passed        int
	failed, wrong []string
	skipped       map[string]int // by reason
	excluded      map[string]int // by reason
	neverRun      int
	notReached    int
	unknown       []string // exclusions of specs that the suite does not have
	took          time.Duration
}

// driverPart is what the suite puts before the name of each spec.
var driverPart = regexp.MustCompile(`^External Storage \[Driver: [^\]]*\] `)

func judge(path, driver string, r rules, c claims, nodes int) (verdict, error) {
	v := verdict{driver: driver, skipped: map[string]int{}, excluded: map[string]int{}}

	reports, err := readReports(path)
	if err != nil {
		return v, err
	}

	reasons := map[string]string{} // why a spec is excluded

	for _, e := range r.excluded(driver) {
		for _, name := range e.Specs {
			reasons[name] = e.Reason
		}
	}

	seen := map[string]bool{}

	for _, report := range reports {
		v.took += report.RunTime
		v.notReached += report.PreRunStats.SpecsThatWillRun

		for _, spec := range report.SpecReports {
			if name, ours := nameOf(spec); ours {
				seen[name] = true
				v.count(spec, name, reasons, r, c, nodes)
			} else if spec.State.Is(types.SpecStateFailureStates) {
				v.failed = append(v.failed, line(spec.LeafNodeType.String(), spec))
			}
		}
	}

	for _, name := range slices.Sorted(maps.Keys(reasons)) {
		if !seen[name] {
			v.unknown = append(v.unknown, name)
		}
	}

	return v, nil
}

func readReports(path string) ([]types.Report, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the report: %w", err)
	}

	var reports []types.Report
	if err := json.Unmarshal(data, &reports); err != nil {
		return nil, fmt.Errorf("report %s: %w", path, err)
	}

	if len(reports) == 0 {
		return nil, fmt.Errorf("report %s: %w", path, errors.New("it contains no suite"))
	}

	return reports, nil
}

// nameOf returns a spec's name as rules.yaml has it, and whether it is one of
// the external-storage suite's.
func nameOf(spec types.SpecReport) (name string, ours bool) {
	full := fullName(spec)
	part := driverPart.FindString(full)

	return full[len(part):], spec.LeafNodeType == types.NodeTypeIt && part != ""
}

func fullName(spec types.SpecReport) string {
	texts := slices.DeleteFunc(append(slices.Clone(spec.ContainerHierarchyTexts), spec.LeafNodeText), func(text string) bool {
		return text == ""
	})

	return strings.Join(texts, " ")
}

func (v *verdict) count(spec types.SpecReport, name string, reasons map[string]string, r rules, c claims, nodes int) {
	switch {
	case spec.State == types.SpecStatePassed:
		v.passed++
		v.notReached--
	case spec.State.Is(types.SpecStateFailureStates):
		v.failed = append(v.failed, line(name, spec))
		v.notReached--
	case spec.Failure.Message != "":
		v.notReached--

		i := slices.IndexFunc(r.Skips, func(s skip) bool {
			return s.message.MatchString(spec.Failure.Message) && s.spec.MatchString(name)
		})
		if i >= 0 && r.Skips[i].expects(spec.Failure.Message, c, nodes) {
			v.skipped[r.Skips[i].Reason]++
		} else {
			v.wrong = append(v.wrong, line(name, spec))
		}
	case reasons[name] != "":
		v.excluded[reasons[name]]++
	default:
		v.neverRun++
	}
}

func line(name string, spec types.SpecReport) string {
	const enough = 600

	message := strings.Join(strings.Fields(spec.Failure.Message), " ")

	return name + "\n      " + message[:min(len(message), enough)]
}

// print prints the counts, and what is behind them.
func (v *verdict) print(out io.Writer) error {
	fmt.Fprintf(out, "%s: %d passed, %d failed, %d skipped as expected, %d skipped though claimed, %d excluded, %d not reached, in %s\n",
		v.driver, v.passed, len(v.failed), sum(v.skipped), len(v.wrong), sum(v.excluded), v.notReached, v.took.Round(time.Second))

	for _, each := range []struct {
		what  string
		lines []string
	}{
		{"FAILED", v.failed},
		{"SKIPPED THOUGH CLAIMED (or no rule expects it)", v.wrong},
		{"EXCLUDED, BUT THE SUITE HAS NO SUCH SPEC", v.unknown},
	} {
		for _, line := range each.lines {
			fmt.Fprintf(out, "  %s: %s\n", each.what, line)
		}
	}

	for _, each := range []struct {
		what    string
		reasons map[string]int
	}{{"skipped", v.skipped}, {"excluded", v.excluded}} {
		for _, reason := range slices.Sorted(maps.Keys(each.reasons)) {
			fmt.Fprintf(out, "  %s %d: %s\n", each.what, each.reasons[reason], reason)
		}
	}

	if len(v.failed)+len(v.wrong)+len(v.unknown)+v.notReached > 0 || v.passed == 0 {
		return errNotWell
	}

	return nil
}

func sum(counts map[string]int) (total int) {
	for _, count := range counts {
		total += count
	}

	return total
}

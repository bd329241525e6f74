package audit

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/touchstone-csi/touchstone/pkg/state"
)

// PrintState prints what was found in the state, for people.
func PrintState(out io.Writer, report state.Report) {
	for _, finding := range report.Findings {
		printStateFinding(out, "damage", finding)
	}

	for _, note := range report.Notes {
		printStateFinding(out, "note", note)
	}

	for _, name := range slices.Sorted(maps.Keys(report.Records)) {
		fmt.Fprintf(out, "%d %s\n", report.Records[name], name)
	}

	if report.Clean() {
		fmt.Fprintf(out, "%s is clean up to change %d\n", report.Dir, report.Sequence)
	}
}

func printStateFinding(out io.Writer, kind string, finding state.Finding) {
	where := finding.File
	if finding.Line > 0 {
		where = fmt.Sprintf("%s:%d", finding.File, finding.Line)
	}

	if finding.Collection != "" {
		where += fmt.Sprintf(": %s %q", finding.Collection, finding.Key)
	}

	fmt.Fprintf(out, "%s: %s: %s\n", kind, where, finding.Reason)

	if finding.Fix != "" {
		fmt.Fprintf(out, "  repair: %s\n", finding.Fix)
	}
}

// PrintPools prints what was found in the pools, for people. Asked means that a comparison was
// requested.
func PrintPools(out io.Writer, report Report, asked bool) {
	if report.Pools == nil {
		if asked {
			fmt.Fprintln(out, "note: the pools were not compared with a state that is damaged: repair that first")
		}

		return
	}

	counts := map[string]int{}

	for _, finding := range report.Pools.Findings {
		finding.Print(out)

		counts[finding.Pool]++
	}

	for _, note := range report.Pools.Notes {
		fmt.Fprintf(out, "note: %s: %s\n", note.Path, note.Reason)
	}

	for _, name := range slices.Sorted(maps.Keys(report.Pools.Compared)) {
		fmt.Fprintf(out, "pool %s in %s was compared with the state: %d findings\n", name, report.Pools.Compared[name], counts[name])
	}
}

// Print prints the finding, for people.
func (f Finding) Print(out io.Writer) {
	fmt.Fprintf(out, "%s: %s: %s", f.Kind, f.Path, f.Reason)

	if f.Bytes > 0 {
		fmt.Fprintf(out, "; it takes %d bytes", f.Bytes)
	}

	fmt.Fprintln(out)

	if f.Fix != "" {
		fmt.Fprintf(out, "  repair: %s\n", f.Fix)
	}

	if f.Advice != "" {
		fmt.Fprintf(out, "  by hand: %s\n", f.Advice)
	}
}

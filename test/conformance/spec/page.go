package main

import (
	"fmt"
	"strings"
)

const permalink = "https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#L"

// page returns docs/spec.md.
func page(rows []row) string {
	var text strings.Builder

	count := map[string]int{}
	for _, r := range rows {
		count[r.verdict]++
	}

	text.WriteString(`# The requirements of CSI v1.13, and what shows them

This page lists every sentence of the spec that has a keyword that binds (MUST, SHALL, REQUIRED) and
every row of its error tables, in the spec's order: what the driver makes of it, and the observation
that shows that. An observation is what a test saw in a call to a real driver: the RPC, the condition
that its request meets, and the code or a property of the response; [testing.md](testing.md#observations)
explains them. The page is generated from [spec/rows.tsv](spec/rows.tsv) by ` + "`go run\n./test/conformance/spec -write`" + `; CI fails when a sentence has no row, or an observation was not made
by a test that passed. The log line of a refused call has the ids of the rows for its code, as
` + "`spec`" + `.

`)
	fmt.Fprintf(&text, "| verdict | sentences | |\n|---|---|---|\n")
	fmt.Fprintf(&text, "| holds | %d | shown by the observations named |\n", count[holds])
	fmt.Fprintf(&text, "| by reasoning | %d | no call can show it, for the reason given |\n", count[reasoned])
	fmt.Fprintf(&text, "| deviates | %d | the decision says why |\n", count[deviates])
	fmt.Fprintf(&text, "| co | %d | binds the CO, the operator or the supervisor |\n", count[bindsCO])
	fmt.Fprintf(&text, "| info | %d | requires nothing |\n", count[information])

	section := ""
	for _, r := range rows {
		if r.section != section {
			section = r.section
			fmt.Fprintf(&text, "\n## %s\n\n| id | statement | verdict | shown by |\n|---|---|---|---|\n", section)
		}

		fmt.Fprintf(&text, "| [%s](%s%d) | %s | %s | %s |\n", r.id, permalink, r.line, cell(r.statement), r.verdict, shownBy(r))
	}

	return text.String()
}

// shownBy returns the observations, or the reason, and the decision of a row.
func shownBy(r row) string {
	shown := make([]string, 0, len(r.shown)+1)
	for _, each := range r.shown {
		if r.verdict == holds {
			each = strings.ReplaceAll(each, " | ", " · ")
		}

		shown = append(shown, each)
	}

	if r.decision != "" {
		if strings.HasPrefix(r.decision, "docs/") {
			shown = append(shown, r.decision)
		} else {
			shown = append(shown, "decision "+r.decision)
		}
	}

	return strings.Join(shown, "; ")
}

// cell returns a statement as the text of a table's cell.
func cell(statement string) string {
	if strings.HasPrefix(statement, "|") {
		parts := strings.Split(statement, "|")
		statement = strings.TrimSpace(parts[1]) + ": " + strings.TrimSpace(parts[2])
	}

	return strings.NewReplacer("|", `\|`, "<", `\<`).Replace(strings.TrimPrefix(statement, "* "))
}

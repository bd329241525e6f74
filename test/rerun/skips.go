package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gotest.tools/gotestsum/testjson"
)

// budget is how many tests may be skipped for a reason.
type budget struct {
	most   int
	reason *regexp.Regexp
}

// budgetColumns are the environment, the number and the reason.
const budgetColumns = 3

// readBudget reads the lines of an environment from a file: "environment<TAB>most<TAB>reason", where
// the reason is a regular expression. Lines that begin with # are comments.
func readBudget(name, environment string) ([]budget, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the budget of skips: %w", err)
	}

	var all []budget

	for line := range strings.Lines(string(text)) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if strings.HasPrefix(line, "#") || len(fields) != budgetColumns || fields[0] != environment {
			continue
		}

		most, err := strconv.Atoi(fields[1])
		if err != nil {
			return nil, fmt.Errorf("%s: %q: %w", name, line, err)
		}

		reason, err := regexp.Compile(fields[2])
		if err != nil {
			return nil, fmt.Errorf("%s: %q: %w", name, line, err)
		}

		all = append(all, budget{most, reason})
	}

	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no line for the environment %q", name, environment)
	}

	return all, nil
}

// skipped is a test, or a part of one, that was skipped.
type skipped struct{ name, reason string }

var location = regexp.MustCompile(`^\s*\S+\.go:\d+: (.*)$`)

// skips returns what was skipped, with the reasons.
func skips(execution *testjson.Execution) []skipped {
	var found []skipped

	for _, name := range execution.Packages() {
		pkg := execution.Package(name)

		for _, test := range pkg.Skipped {
			reason := ""

			for _, line := range pkg.OutputLines(test) {
				if said := location.FindStringSubmatch(strings.TrimRight(line, "\n")); said != nil {
					reason = said[1]
				}
			}

			found = append(found, skipped{name + "." + test.Test.Name(), reason})
		}
	}

	return found
}

// account prints how many tests were skipped for each reason, and returns an error if those are more
// than the budget has, or a reason is not in it. What passed when it was repeated was not skipped.
func (r *run) account(allowed []budget) error {
	counts := make([]int, len(allowed))

	var problems []string

	for _, each := range skips(r.execution) {
		i := slices.IndexFunc(allowed, func(b budget) bool { return b.reason.MatchString(each.reason) })
		if i < 0 {
			problems = append(problems, fmt.Sprintf("%s: %q is no reason in the budget", each.name, each.reason))

			continue
		}

		counts[i]++
	}

	total := 0

	for i, each := range allowed {
		total += counts[i]

		if counts[i] > 0 {
			fmt.Fprintf(r.out, "skipped: %d of at most %d: %s\n", counts[i], each.most, each.reason)
		}

		if counts[i] > each.most {
			problems = append(problems, fmt.Sprintf("%d tests were skipped, at most %d may be: %s", counts[i], each.most, each.reason))
		}
	}

	fmt.Fprintf(r.out, "left out: %d tests\n", total)

	if len(problems) > 0 {
		return fmt.Errorf("skipped tests:\n%s", strings.Join(problems, "\n"))
	}

	return nil
}

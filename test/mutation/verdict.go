package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// outcome is what became of a mutant. Only caught is good.
type outcome string

const (
	caught   outcome = "caught"
	survived outcome = "survived"
	unclear  outcome = "unclear"
	timedOut outcome = "timed out"
	panicked outcome = "panicked"
	stale    outcome = "stale"
	broken   outcome = "broken"
)

type verdict struct {
	outcome outcome
	// test is the first one that failed with a good message, and message that.
	test, message string
	// ran is the number of tests, subtests included.
	ran int
}

// event is a line of what go test -json prints.
type event struct {
	Action string `json:"Action"`
	Test   string `json:"Test"`
	Output string `json:"Output"`
}

// judge reads the output of go test -json.
func judge(output string, passed bool) (verdict, error) {
	texts := map[string]*strings.Builder{"": {}}

	var (
		v      verdict
		failed []string
	)

	for line := range strings.Lines(output) {
		var e event
		if json.Unmarshal([]byte(line), &e) != nil {
			texts[""].WriteString(line) // the go command's own words

			continue
		}

		if texts[e.Test] == nil {
			texts[e.Test] = &strings.Builder{}
		}

		switch e.Action {
		case "run":
			v.ran++
		case "output", "build-output":
			texts[e.Test].WriteString(e.Output)
		case "fail":
			failed = append(failed, e.Test) // a subtest's event comes before its parent's
		}
	}

	if passed {
		v.outcome = survived

		return v, nil
	}

	// One good message is enough.
	for i, name := range append(failed, "") {
		judged, message := classify(output, texts[name].String())
		if i == 0 || judged == caught && v.outcome == unclear && name != "" && !isParent(name, failed) {
			v.outcome, v.test, v.message = judged, name, message
		}
	}

	if v.message == "" {
		return v, fmt.Errorf("the tests failed and printed nothing to judge it by: %s", oneLine(output))
	}

	return v, nil
}

// isParent says whether a test has failed because of a subtest.
func isParent(name string, failed []string) bool {
	return slices.ContainsFunc(failed, func(other string) bool { return strings.HasPrefix(other, name+"/") })
}

func classify(output, text string) (outcome, string) {
	message := failure(text)

	switch {
	case strings.Contains(output, "panic: test timed out after"):
		return timedOut, message
	case strings.Contains(output, "[build failed]"), strings.Contains(output, "[setup failed]"):
		return broken, message
	case panics.MatchString(text):
		return panicked, oneLine(text[panics.FindStringIndex(text)[0]:])
	case bare[message]:
		return unclear, message
	default:
		return caught, message
	}
}

// bare are messages that say neither what was done nor what was expected.
var bare = map[string]bool{
	"":                                  true,
	"An error is expected but got nil.": true,
	"Should be true":                    true,
	"Should be false":                   true,
	"Condition never satisfied":         true,
	"context deadline exceeded":         true,
}

var (
	panics = regexp.MustCompile(`(?m)^(panic: |fatal error: |SIGSEGV|unexpected fault address)`)
	// located is what testing puts before a message.
	located = regexp.MustCompile(`^\s+\S+\.go:\d+: `)
	// field is how testify starts a part of a message.
	field = regexp.MustCompile(`^\s+(Error Trace|Error|Test|Messages):\s+(.*)$`)
)

// failure returns the first failed assertion of a test's output, on one line:
// testify's if there is one, or what the test printed last.
func failure(text string) string {
	var parts []string

	inside := ""

	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")

		if found := field.FindStringSubmatch(line); found != nil {
			if found[1] == "Error Trace" && len(parts) > 0 {
				break
			}

			inside = found[1]
			line = found[2]
		} else if located.MatchString(line) || strings.HasPrefix(strings.TrimSpace(line), "--- FAIL") {
			inside = ""
		}

		if inside == "Error" || inside == "Messages" {
			parts = append(parts, line)
		}
	}

	if len(parts) > 0 {
		return oneLine(strings.Join(parts, " "))
	}

	last := ""

	for line := range strings.Lines(text) {
		if found := located.FindString(line); found != "" {
			last = line[len(found):]
		}
	}

	if last == "" {
		last = text
	}

	return oneLine(last)
}

const messageLength = 300

// oneLine joins lines and shortens what is long.
func oneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > messageLength {
		text = strings.ToValidUTF8(text[:messageLength], "") + " …"
	}

	return text
}

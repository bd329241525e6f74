package faults

import (
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Calls selects calls by their number among those that match the rest of a rule, from 1 on: "5",
// "1-3", "4-", "2,4", "odd", "even" or "every 5". The zero value selects all.
type Calls struct {
	text   string
	ranges []callRange
	every  int
	// rest is the remainder of a number divided by every.
	rest int
}

type callRange struct{ first, last int }

const lastCall = int(^uint(0) >> 1)

func parseCalls(text string) (Calls, error) {
	calls := Calls{text: text}

	switch text {
	case "odd":
		calls.every, calls.rest = 2, 1

		return calls, nil
	case "even":
		calls.every = 2

		return calls, nil
	}

	if every, ok := strings.CutPrefix(text, "every "); ok {
		number, err := strconv.Atoi(every)
		if err != nil || number < 1 {
			return Calls{}, errCalls(text)
		}

		calls.every = number

		return calls, nil
	}

	for part := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			to = from
		}

		first, err := strconv.Atoi(from)
		last, lastErr := strconv.Atoi(to)

		if isRange && to == "" {
			last, lastErr = lastCall, nil
		}

		if err != nil || lastErr != nil || first < 1 || last < first {
			return Calls{}, errCalls(text)
		}

		calls.ranges = append(calls.ranges, callRange{first, last})
	}

	return calls, nil
}

func errCalls(text string) error {
	return fmt.Errorf("%w: calls %q is none of 5, 1-3, 4-, 2,4, odd, even, every 5", ErrRule, text)
}

// Has reports whether the call of that number is selected.
func (c Calls) Has(number int) bool {
	switch {
	case c.IsZero():
		return true
	case c.every > 0:
		return number%c.every == c.rest
	}

	for _, each := range c.ranges {
		if each.first <= number && number <= each.last {
			return true
		}
	}

	return false
}

// IsZero reports whether the selection was left out.
func (c Calls) IsZero() bool { return c.text == "" }

// UnmarshalYAML implements yaml.Unmarshaler.
func (c *Calls) UnmarshalYAML(node *yaml.Node) error {
	parsed, err := parseCalls(node.Value)
	if err != nil {
		return mistake(node, "%v", err)
	}

	*c = parsed

	return nil
}

// MarshalYAML implements yaml.Marshaler.
func (c Calls) MarshalYAML() (any, error) { return c.text, nil }

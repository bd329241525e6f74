package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
)

// target is what a value is to be; the zero limit is none.
type target struct {
	Unit    string  `json:"unit"`
	Limit   float64 `json:"limit,omitempty"`
	AtLeast bool    `json:"atLeast,omitempty"`
}

func atMost(limit float64, unit string) target { return target{Unit: unit, Limit: limit} }
func atLeast(limit float64, unit string) target {
	return target{Unit: unit, Limit: limit, AtLeast: true}
}
func known(unit string) target { return target{Unit: unit} }

func (t target) String() string {
	switch {
	case t.Limit == 0:
		return ""
	case t.AtLeast:
		return fmt.Sprintf("≥ %g %s", t.Limit, t.Unit)
	default:
		return fmt.Sprintf("≤ %g %s", t.Limit, t.Unit)
	}
}

func (t target) verdict(value float64) string {
	switch {
	case t.Limit == 0:
		return ""
	case t.AtLeast == (value >= t.Limit):
		return "met"
	default:
		return "missed"
	}
}

// result is one quantity, measured once a round.
type result struct {
	Name   string    `json:"name"`
	Target target    `json:"target"`
	Values []float64 `json:"values"`
}

func (r *result) median() float64 { return median(r.Values) }

// median returns the value in the middle, and of an even number the mean of both.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))

	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// results keeps the order in which they came first.
type results struct {
	Machine machine   `json:"machine"`
	Results []*result `json:"results"`
}

func newResults(on machine) *results { return &results{Machine: on} }

func (r *results) put(name string, value float64, wanted target) {
	at := slices.IndexFunc(r.Results, func(each *result) bool { return each.Name == name })
	if at < 0 {
		at = len(r.Results)
		r.Results = append(r.Results, &result{Name: name, Target: wanted})
	}

	r.Results[at].Values = append(r.Results[at].Values, value)
}

// table writes the table that docs/performance.md holds.
func (r *results) table(to io.Writer) {
	fmt.Fprintln(to, r.Machine)

	const gap = 2

	table := tabwriter.NewWriter(to, 0, 0, gap, ' ', 0)
	fmt.Fprintln(table, "| What\t| Target\t| Median\t| Lowest – highest\t| \t|")
	fmt.Fprintln(table, "|---\t|---\t|---\t|---\t|---\t|")

	for _, each := range r.Results {
		fmt.Fprintf(table, "| %s\t| %s\t| %s\t| %s – %s\t| %s\t|\n", each.Name, each.Target,
			short(each.median())+" "+each.Target.Unit, short(slices.Min(each.Values)), short(slices.Max(each.Values)),
			each.Target.verdict(each.median()))
	}

	_ = table.Flush()
}

// compare writes a table with the ratios of the values to those of an older driver in the same rounds.
func (r *results) compare(to io.Writer, older *results) {
	fmt.Fprintln(to, r.Machine)

	const gap = 2

	table := tabwriter.NewWriter(to, 0, 0, gap, ' ', 0)
	fmt.Fprintln(table, "| What\t| Before\t| Now\t| Ratio\t| Lowest – highest\t|")
	fmt.Fprintln(table, "|---\t|---\t|---\t|---\t|---\t|")

	for _, each := range r.Results {
		before := older.Results[slices.IndexFunc(older.Results, func(other *result) bool { return other.Name == each.Name })]
		ratios := make([]float64, len(each.Values))

		for round, value := range each.Values {
			ratios[round] = value / before.Values[round]
		}

		fmt.Fprintf(table, "| %s\t| %s\t| %s\t| %s\t| %s – %s\t|\n", each.Name, short(before.median())+" "+each.Target.Unit,
			short(each.median())+" "+each.Target.Unit, short(median(ratios)), short(slices.Min(ratios)), short(slices.Max(ratios)))
	}

	_ = table.Flush()
}

// short has three digits that count.
func short(value float64) string {
	const thousand, hundred = 1000, 100
	if value >= hundred {
		return fmt.Sprintf("%.0f", value)
	}

	return fmt.Sprintf("%.3g", value)
}

func (r *results) save(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("save the results: %w", err)
	}

	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("save the results: %w", err)
	}

	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("save the results: %w", err)
	}

	return nil
}

package main

import (
	"testing"
	"time"
)

// TestWhatDoesNotCompileIsNoMutant: it fails the run of regressions, and counts for nothing in a sample.
func TestWhatDoesNotCompileIsNoMutant(t *testing.T) {
	for name, test := range map[string]struct{ isRegression, fails bool }{
		"sample": {isRegression: false}, "regressions": {isRegression: true, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := &report{total: 2, outcomes: map[outcome]int{}, areas: map[string][2]int{}}
			r.add(mutant{name: "pkg/state/a.go:1"}, verdict{outcome: caught}, time.Second, test.isRegression)
			r.add(mutant{name: "pkg/state/a.go:1"}, verdict{outcome: broken}, time.Second, test.isRegression)

			if err := r.summarize(test.isRegression); (err != nil) != test.fails {
				t.Errorf("want: fails is %t: %v", test.fails, err)
			}
		})
	}
}

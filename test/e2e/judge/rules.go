package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// rules are rules.yaml, which explains its keys.
type rules struct {
	NeverRun   []string    `json:"neverRun"`
	Exclusions []exclusion `json:"exclusions"`
	Skips      []skip      `json:"skips"`

	lacking []string
}

type exclusion struct {
	Reason  string   `json:"reason"`
	Lacking string   `json:"lacking"`
	Drivers []string `json:"drivers"`
	Specs   []string `json:"specs"`
}

type skip struct {
	Message string `json:"message"`
	Spec    string `json:"spec"`
	Unless  string `json:"unless"`
	If      string `json:"if"`
	Nodes   int    `json:"nodes"`
	Reason  string `json:"reason"`

	message, spec *regexp.Regexp
}

func readRules(path string, lacking []string) (rules, error) {
	r := rules{lacking: lacking}

	data, err := os.ReadFile(path)
	if err != nil {
		return r, fmt.Errorf("reading the rules: %w", err)
	}

	if err := yaml.UnmarshalStrict(data, &r); err != nil {
		return r, fmt.Errorf("rules %s: %w", path, err)
	}

	for _, word := range lacking {
		if !slices.ContainsFunc(r.Exclusions, func(e exclusion) bool { return e.Lacking == word }) {
			return r, fmt.Errorf("-lacking %s: no exclusion of %s is for that", word, path)
		}
	}

	for _, e := range r.Exclusions {
		if e.Reason == "" || len(e.Specs) == 0 {
			return r, fmt.Errorf("rules %s: an exclusion has a reason and specs, not %+v", path, e)
		}
	}

	for i := range r.Skips {
		if err := r.Skips[i].compile(); err != nil {
			return r, fmt.Errorf("rules %s, skip %q: %w", path, r.Skips[i].Message, err)
		}
	}

	return r, nil
}

func (s *skip) compile() error {
	if s.Reason == "" {
		return errors.New("it has no reason")
	}

	var err error
	if s.message, err = regexp.Compile(s.Message); err != nil {
		return fmt.Errorf("message: %w", err)
	}

	if s.spec, err = regexp.Compile(s.Spec); err != nil {
		return fmt.Errorf("spec: %w", err)
	}

	return nil
}

// excluded are the exclusions that hold for a test-driver file on this cluster.
func (r rules) excluded(driver string) []exclusion {
	return slices.DeleteFunc(slices.Clone(r.Exclusions), func(e exclusion) bool {
		return (len(e.Drivers) > 0 && !slices.Contains(e.Drivers, driver)) ||
			(e.Lacking != "" && !slices.Contains(r.lacking, e.Lacking))
	})
}

// skipExpression matches what is never run and, by their whole names, what is
// excluded. Ginkgo puts the suite's and the driver's names before a spec's.
func (r rules) skipExpression(driver string) string {
	expressions := slices.Clone(r.NeverRun)

	for _, e := range r.excluded(driver) {
		for _, name := range e.Specs {
			expressions = append(expressions, `\] `+regexp.QuoteMeta(name)+`$`)
		}
	}

	return strings.Join(expressions, "|")
}

// expects reports whether a spec of a file that claims this may have been
// skipped with such a message on so many nodes.
func (s *skip) expects(message string, c claims, nodes int) bool {
	expand := func(path string) string {
		return string(s.message.ExpandString(nil, path, message, s.message.FindStringSubmatchIndex(message)))
	}

	switch {
	case s.Unless != "" && c.made(expand(s.Unless)):
		return false
	case s.If != "" && !c.made(expand(s.If)):
		return false
	case s.Nodes > 0 && nodes >= s.Nodes:
		return false
	default:
		return true
	}
}

// claims are a test-driver file.
type claims map[string]any

func readClaims(path string) (claims, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the test-driver file: %w", err)
	}

	var c claims
	if err := yaml.Unmarshal(data, &c); err != nil {
		return nil, fmt.Errorf("test-driver file %s: %w", path, err)
	}

	return c, nil
}

// made reports whether the file claims what is at a path such as
// DriverInfo.Capabilities.block: anything there but false claims it.
func (c claims) made(path string) bool {
	var at any = map[string]any(c)

	for key := range strings.SplitSeq(path, ".") {
		within, ok := at.(map[string]any)
		if !ok {
			return false
		}

		if at, ok = within[key]; !ok {
			return false
		}
	}

	return at != false
}

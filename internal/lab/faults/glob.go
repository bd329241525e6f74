package faults

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Glob matches a whole text: * is any characters, ? is one, and a comma separates alternatives.
type Glob struct {
	text    string
	matches *regexp.Regexp
}

func newGlob(text string) Glob {
	pattern := regexp.QuoteMeta(text)
	for from, to := range map[string]string{`\*`: ".*", `\?`: ".", ",": "|"} {
		pattern = strings.ReplaceAll(pattern, from, to)
	}

	return Glob{text: text, matches: regexp.MustCompile("^(?s:" + pattern + ")$")}
}

// Match reports whether the text matches. The zero Glob matches everything.
func (g Glob) Match(text string) bool { return g.IsZero() || g.matches.MatchString(text) }

// matchAny reports whether one of the texts matches. The glob must not be zero.
func (g Glob) matchAny(texts []string) bool {
	return slices.ContainsFunc(texts, g.matches.MatchString)
}

// IsZero reports whether the glob was left out.
func (g Glob) IsZero() bool { return g.matches == nil }

func (g Glob) String() string { return g.text }

// UnmarshalYAML implements yaml.Unmarshaler.
func (g *Glob) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind != yaml.ScalarNode || node.Value == "" {
		return mistake(node, "a pattern such as Node* is a text")
	}

	*g = newGlob(node.Value)

	return nil
}

// MarshalYAML implements yaml.Marshaler.
func (g Glob) MarshalYAML() (any, error) { return g.text, nil }

// mistake is an error in the line of the node. yaml.v3 collects those of one document.
func mistake(node *yaml.Node, format string, args ...any) error {
	return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: ", node.Line) + fmt.Sprintf(format, args...)}}
}

package faults

import (
	"fmt"
	"path"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Patterns match a whole text, as path.Match does; one of them has to. No pattern matches everything.
type Patterns []string

// Match reports whether a pattern matches the text.
func (p Patterns) Match(text string) bool { return len(p) == 0 || p.matchAny([]string{text}) }

// matchAny reports whether a pattern matches one of the texts.
func (p Patterns) matchAny(texts []string) bool {
	return slices.ContainsFunc(p, func(pattern string) bool {
		return slices.ContainsFunc(texts, func(text string) bool {
			matched, _ := path.Match(pattern, text) // UnmarshalYAML has checked the pattern

			return matched
		})
	})
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (p *Patterns) UnmarshalYAML(node *yaml.Node) error {
	nodes := node.Content
	if node.Kind == yaml.ScalarNode {
		nodes = []*yaml.Node{node}
	}

	*p = nil

	for _, each := range nodes {
		if _, err := path.Match(each.Value, ""); err != nil || each.Kind != yaml.ScalarNode || each.Value == "" {
			return mistake(each, "%q is not a pattern such as Node*", each.Value)
		}

		*p = append(*p, each.Value)
	}

	if len(*p) == 0 || node.Kind == yaml.MappingNode {
		return mistake(node, "a pattern is a text such as Node*, or a list of them")
	}

	return nil
}

// MarshalYAML implements yaml.Marshaler.
func (p Patterns) MarshalYAML() (any, error) {
	if len(p) == 1 {
		return p[0], nil
	}

	return []string(p), nil
}

// mistake is an error in the line of the node. yaml.v3 collects those of one document.
func mistake(node *yaml.Node, format string, args ...any) error {
	return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: ", node.Line) + fmt.Sprintf(format, args...)}}
}

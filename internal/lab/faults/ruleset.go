package faults

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"
)

// ruleSet has the active rules. Injector.mu guards it, but for changed.
type ruleSet struct {
	active   []*active
	seed     uint64
	numbered int
	// conditionsChanged is Config.ConditionsChanged.
	conditionsChanged func()
}

// freeName returns a name that neither an active rule nor one of those has.
func (s *ruleSet) freeName(others []Rule) string {
	for {
		s.numbered++
		name := fmt.Sprintf("rule-%d", s.numbered)

		if s.find(name) < 0 && !slices.ContainsFunc(others, func(r Rule) bool { return r.Name == name }) {
			return name
		}
	}
}

func (s *ruleSet) find(name string) int {
	return slices.IndexFunc(s.active, func(a *active) bool { return a.Name == name })
}

// changed reports changed conditions.
func (s *ruleSet) changed(rules ...Rule) {
	if s.conditionsChanged != nil && slices.ContainsFunc(rules, func(r Rule) bool { return r.Act.Condition != nil }) {
		s.conditionsChanged()
	}
}

// activate makes a rule active.
func (s *ruleSet) activate(rule Rule, source string) *active {
	text, err := yaml.Marshal(rule)
	if err != nil {
		text = []byte(err.Error())
	}

	name := fnv.New64a()
	_, _ = name.Write([]byte(rule.Name))

	// Its own numbers: those of one rule do not depend on the calls of another.
	made := &active{
		Rule: rule, source: source, text: string(text), parts: rule.Act.parts(), cleared: make(chan struct{}),
		ends:   rule.Until.untilTime(time.Now()),
		random: rand.New(rand.NewPCG(s.seed, name.Sum64())), //nolint:gosec // the same numbers again are what a seed is for
	}

	if !made.ends.IsZero() && rule.Act.Condition != nil {
		made.timer = time.AfterFunc(time.Until(made.ends), func() { s.changed(rule) })
	}

	return made
}

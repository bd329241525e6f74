package faults

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.yaml.in/yaml/v3"
)

// Hit is one effect of a rule.
type Hit struct {
	At   time.Time `json:"at"`
	Rule string    `json:"rule"`
	// Number counts the hits of the rule.
	Number int `json:"number"`
	// Method is the RPC, or the point of an operation.
	Method string `json:"method"`
	// Object is the id or name of the call's volume, snapshot, group or node.
	Object string `json:"object,omitempty"`
	// Act has the keys of act.
	Act string `json:"act"`
}

// Status describes an active rule.
type Status struct {
	Name string `json:"name"`
	// Source is file, for the file of --faults, or added.
	Source string `json:"source"`
	Method string `json:"method"`
	Act    string `json:"act"`
	// Calls matched the rule but for calls and probability; Hits had its effect.
	Calls int `json:"calls"`
	Hits  int `json:"hits"`
	// Holding is the number of calls that a hold keeps now.
	Holding int `json:"holding"`
	// Ended: until is over; the rule has no effect any more.
	Ended bool `json:"ended"`
	// Problem is why its where could not be evaluated for the last call that had one.
	Problem string `json:"problem,omitempty"`
	// Rule is the rule as YAML.
	Rule string `json:"rule"`
}

// Sources of rules.
const (
	fromFile = "file"
	added    = "added"
)

// active is a rule with its counters.
type active struct {
	Rule

	source  string
	text    string
	parts   []part
	random  *rand.Rand
	ends    time.Time
	calls   int
	hits    int
	holding atomic.Int64
	problem atomic.Pointer[string]
	// cleared is closed when the rule is cleared or replaced.
	cleared chan struct{}
	// timer reports the end of a condition.
	timer *time.Timer
}

func (a *active) ended(now time.Time) bool {
	return a.hits >= a.Until.maxHits() || !a.ends.IsZero() && !now.Before(a.ends)
}

func (a *active) deactivate() {
	close(a.cleared)

	if a.timer != nil {
		a.timer.Stop()
	}
}

// where is the rule's method or point.
func (a *active) where() string {
	switch {
	case a.Act.Condition != nil:
		return "health"
	case a.Act.Start != nil:
		return "start"
	case !a.Match.At.isOfCalls():
		return string(a.Match.At)
	case len(a.Match.Method) == 0:
		return "*"
	default:
		return strings.Join(a.Match.Method, ",")
	}
}

// does has the keys of act.
func (a *active) does() string {
	names := make([]string, 0, len(a.parts))
	for _, each := range a.parts {
		names = append(names, each.name)
	}

	return strings.Join(names, ",")
}

// ruleSet has the active rules. Injector.mu guards it, but for conditionsChanged.
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
	text, _ := yaml.Marshal(rule) // it was read from YAML
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

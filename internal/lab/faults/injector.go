package faults

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/recent"
)

var (
	// ErrExists is returned for a rule whose name another one has.
	ErrExists = errdefs.New(errdefs.ErrAlreadyExists, "a fault rule of that name is active")
	// ErrUnknown is returned for the name of no rule, and of no hold.
	ErrUnknown = errdefs.New(errdefs.ErrNotFound, "unknown")
)

// maxHits is how many hits the log keeps, and maxRemembered how many responses: the newest.
const (
	maxHits       = 1000
	maxRemembered = 10000
)

// Object is an object that has a name.
type Object struct{ ID, Name string }

// Config configures an Injector.
type Config struct {
	// NodeID is the driver's own node.
	NodeID string
	// Names returns the objects of a kind (volume, snapshot, group), so that rules match by names;
	// nil knows none.
	Names func(kind string) []Object
	// Vanish hides the driver's socket until restore is called; nil cannot.
	Vanish func() (restore func(), err error)
	// ConditionsChanged is called after a rule with a condition began or ended; nil means no calls.
	ConditionsChanged func()
	// Crash ends the process; nil sends it SIGKILL.
	Crash func()
	Log   *slog.Logger
}

// Injector has the active rules. It is safe for concurrent use.
type Injector struct {
	log     *slog.Logger
	matcher matcher
	effects effects
	close   sync.Once

	mu        sync.Mutex
	rules     ruleSet
	hits      hitLog
	fileError string
	// loaded is the text of the file whose rules were applied last, recheck has Follow load it again.
	loaded  []byte
	recheck chan struct{}
	// previous are the last responses.
	previous *recent.Map[string, proto.Message]
}

// New returns an Injector without rules.
func New(config Config) *Injector {
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}

	if config.Crash == nil {
		config.Crash = func() { _ = unix.Kill(os.Getpid(), unix.SIGKILL) }
	}

	return &Injector{
		log: config.Log, matcher: matcher{nodeID: config.NodeID, names: config.Names, log: config.Log},
		effects: effects{
			vanishSocket: config.Vanish, crash: config.Crash, log: config.Log,
			closed: make(chan struct{}), released: map[string]chan struct{}{},
		},
		rules: ruleSet{seed: 1, conditionsChanged: config.ConditionsChanged}, hits: hitLog{total: map[string]int{}},
		previous: recent.NewMap[string, proto.Message](maxRemembered), recheck: make(chan struct{}, 1),
	}
}

// Add adds the rules of a document behind the active ones, and returns their names. Errors: ErrRule,
// ErrExists; no rule is added then.
func (i *Injector) Add(text []byte) ([]string, error) {
	file, err := Parse(text)
	if err != nil {
		return nil, err
	}

	if len(file.Rules) == 0 {
		return nil, fmt.Errorf("%w: there is none", ErrRule)
	}

	for _, rule := range file.Rules {
		if rule.Act.Start != nil {
			return nil, fmt.Errorf("%w: line %d: start acts at a start, so it has to be in the file of --faults", ErrRule, rule.line)
		}
	}

	i.mu.Lock()

	for at := range file.Rules {
		rule := &file.Rules[at]
		if rule.Name == "" {
			rule.Name = i.rules.freeName(file.Rules)
		} else if i.rules.find(rule.Name) >= 0 {
			i.mu.Unlock()

			return nil, fmt.Errorf("%w: %s; clear it first", ErrExists, rule.Name)
		}
	}

	if file.Seed != nil {
		i.rules.seed = *file.Seed
	}

	names := make([]string, 0, len(file.Rules))

	for _, rule := range file.Rules {
		i.rules.active = append(i.rules.active, i.rules.activate(rule, added))
		names = append(names, rule.Name)
	}

	i.mu.Unlock()
	i.rules.changed(file.Rules...)
	i.log.Warn("fault rules were added", "rules", names)

	return names, nil
}

// Clear clears the rule of a name, or all rules for "", and returns their names. Error: ErrUnknown.
func (i *Injector) Clear(name string) ([]string, error) {
	i.mu.Lock()

	if name != "" && i.rules.find(name) < 0 {
		i.mu.Unlock()

		return nil, fmt.Errorf("%w: no fault rule has the name %q", ErrUnknown, name)
	}

	var (
		cleared []Rule
		names   = []string{}
	)

	i.rules.active = slices.DeleteFunc(i.rules.active, func(a *active) bool {
		if name != "" && a.Name != name {
			return false
		}

		a.deactivate()
		cleared, names = append(cleared, a.Rule), append(names, a.Name)

		return true
	})
	i.mu.Unlock()
	i.rules.changed(cleared...)
	i.log.Warn("fault rules were cleared", "rules", names)

	// A rule of the file may have waited for the name.
	select {
	case i.recheck <- struct{}{}:
	default:
	}

	return names, nil
}

// replaceFile replaces the rules of the file by those of a text. A rule that is in both keeps its counters. A name of a
// rule that was added at run time is refused.
func (i *Injector) replaceFile(file File, text []byte) error {
	i.mu.Lock()

	var kept []*active

	old := map[string]*active{}

	for _, each := range i.rules.active {
		if each.source == fromFile {
			old[each.Name] = each
		} else {
			kept = append(kept, each)
		}
	}

	for at := range file.Rules {
		rule := &file.Rules[at]
		if rule.Name == "" {
			rule.Name = fmt.Sprintf("file-%d", at+1)
		}

		if slices.ContainsFunc(kept, func(a *active) bool { return a.Name == rule.Name }) {
			i.mu.Unlock()

			return fmt.Errorf("%w: line %d: %w: %s was added at run time", ErrRule, rule.line, ErrExists, rule.Name)
		}
	}

	if file.Seed != nil {
		i.rules.seed = *file.Seed
	}

	fresh := make([]*active, 0, len(file.Rules))
	all := slices.Clone(file.Rules)

	for _, rule := range file.Rules {
		made := i.rules.activate(rule, fromFile)
		if before := old[rule.Name]; before != nil && before.text == made.text {
			made.deactivate()

			made = before
			delete(old, rule.Name)
		}

		fresh = append(fresh, made)
	}

	for _, each := range old {
		each.deactivate()
		all = append(all, each.Rule)
	}

	i.rules.active = slices.Concat(fresh, kept)
	i.loaded, i.fileError = text, ""
	i.mu.Unlock()
	i.rules.changed(all...)

	return nil
}

// List describes the active rules, and why the last change of the file was refused.
func (i *Injector) List() (rules []Status, fileError string) {
	i.mu.Lock()
	defer i.mu.Unlock()

	rules = make([]Status, 0, len(i.rules.active))
	now := time.Now()

	for _, each := range i.rules.active {
		status := Status{
			Name: each.Name, Source: each.source, Method: each.where(), Act: each.does(),
			Calls: each.calls, Hits: each.hits, Holding: int(each.holding.Load()), Ended: each.ended(now), Rule: each.text,
		}
		if problem := each.problem.Load(); problem != nil {
			status.Problem = *problem
		}

		rules = append(rules, status)
	}

	return rules, i.fileError
}

// Log returns the newest hits, the oldest first.
func (i *Injector) Log() []Hit {
	i.mu.Lock()
	defer i.mu.Unlock()

	return append([]Hit{}, i.hits.newest...)
}

// Close ends all waits: the driver drains. Rules have no effect any more.
func (i *Injector) Close() { i.close.Do(func() { close(i.effects.closed) }) }

// hit is one effect on one call or operation.
type hit struct {
	*active

	// number counts the hits of the rule, from 1 on.
	number int
}

// occurrence is a call, or an operation at a point.
type occurrence struct {
	method string
	object string
	// matches reports whether a rule is about it, but for calls and probability.
	matches func(*active) bool
}

// decide counts an occurrence and returns the hits, in the order of the rules.
func (i *Injector) decide(ctx context.Context, of occurrence) []hit {
	select {
	case <-i.effects.closed:
		return nil
	default:
	}

	i.mu.Lock()
	rules := slices.Clone(i.rules.active)
	i.mu.Unlock()

	// Names are asked for without the mutex.
	rules = slices.DeleteFunc(rules, func(a *active) bool { return !of.matches(a) })

	i.mu.Lock()
	defer i.mu.Unlock()

	var (
		hits []hit
		now  = time.Now()
	)

	for _, each := range rules {
		if each.ended(now) || !slices.Contains(i.rules.active, each) {
			continue
		}

		each.calls++

		// One number for each call, whatever calls selects.
		random := each.random.Float64()
		if !each.Match.Calls.Has(each.calls) || each.Match.Probability != nil && random >= *each.Match.Probability {
			continue
		}

		each.hits++
		hits = append(hits, hit{each, each.hits})
		i.hits.add(Hit{At: now, Rule: each.Name, Number: each.hits, Method: of.method, Object: of.object, Act: each.does()})
		i.log.InfoContext(ctx, "a fault rule has a hit", "rule", each.Name, "hit", each.hits, "at", of.method, "object", of.object)
	}

	return hits
}

// hitLog has the newest hits, and the number of all of each rule. Injector.mu guards it.
type hitLog struct {
	newest []Hit
	total  map[string]int
}

func (l *hitLog) add(hit Hit) {
	l.total[hit.Rule]++

	if len(l.newest) == maxHits {
		l.newest = slices.Delete(l.newest, 0, 1)
	}

	l.newest = append(l.newest, hit)
}

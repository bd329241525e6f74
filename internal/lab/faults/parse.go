package faults

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	_ "google.golang.org/genproto/googleapis/rpc/errdetails" // the types of Detail
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/lab/jq"
)

// File is the content of a file of rules.
type File struct {
	// Seed is the seed of the random numbers, 1 by default.
	Seed  *uint64 `yaml:"seed,omitempty"`
	Rules []Rule  `yaml:"rules"`
}

// Parse reads rules: a File, a list of rules, or a single rule. Its error has a line for each mistake,
// with the line of the document, and wraps ErrRule.
func Parse(text []byte) (File, error) {
	var (
		document yaml.Node
		file     File
	)

	if err := yaml.Unmarshal(text, &document); err != nil {
		hint := ""
		if bytes.Contains(text, []byte("where:")) || bytes.Contains(text, []byte("patch:")) {
			hint = "; quote a jq program that has one of , : # [ ] { }"
		}

		return File{}, fmt.Errorf("%w: %w%s", ErrRule, err, hint)
	}

	if len(document.Content) == 0 {
		return File{}, nil
	}

	root, single := document.Content[0], make([]Rule, 1)

	var into any = &file

	switch {
	case root.Kind == yaml.SequenceNode:
		into = &file.Rules
	case root.Kind != yaml.MappingNode:
		return File{}, fmt.Errorf("%w: line %d: neither a rule, nor a list of rules, nor a mapping with rules", ErrRule, root.Line)
	case valueAt(root, "rules") == nil && (valueAt(root, "act") != nil || valueAt(root, "match") != nil):
		into = &single[0]
	}

	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)

	if err := decoder.Decode(into); err != nil {
		return File{}, decodingError(err)
	}

	if err := decoder.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return File{}, fmt.Errorf("%w: there is a second document; put all rules into the list of one", ErrRule)
	}

	rules := []*yaml.Node{root}

	if into == any(&single[0]) {
		file.Rules = single
	} else if list := valueAt(root, "rules"); list != nil {
		rules = list.Content
	} else {
		rules = root.Content
	}

	if err := file.check(rules); err != nil {
		return File{}, err
	}

	return file, nil
}

func decodingError(err error) error {
	mistakes, ok := errors.AsType[*yaml.TypeError](err)
	if !ok {
		return fmt.Errorf("%w: %w", ErrRule, err)
	}

	texts := make([]error, 0, len(mistakes.Errors))
	for _, each := range mistakes.Errors {
		texts = append(texts, fmt.Errorf("%w: %s", ErrRule, explained(strings.ReplaceAll(each, ErrRule.Error()+": ", ""))))
	}

	return errors.Join(texts...)
}

var (
	unknownKey = regexp.MustCompile(`field (.*) not found in type faults\.(\w+)`)
	wrongType  = regexp.MustCompile("cannot unmarshal !!\\w+ (`.*` )?into (\\S+)")
)

// explained names the keys of rules where yaml.v3 names types of Go.
func explained(mistake string) string {
	if found := unknownKey.FindStringSubmatch(mistake); found != nil {
		known := fmt.Sprintf("%s is no key here; there are %s", found[1], strings.Join(keysOf(found[2]), ", "))

		return strings.Replace(mistake, found[0], known, 1)
	}

	if found := wrongType.FindStringSubmatch(mistake); found != nil {
		wanted := "a value of another kind is wanted"

		switch keys := keysOf(strings.TrimPrefix(found[2], "faults.")); {
		case found[2] == "time.Duration":
			wanted = "a duration such as 30s is wanted"
		case len(keys) > 0:
			wanted = "a mapping is wanted, with the keys " + strings.Join(keys, ", ")
		}

		return strings.Replace(mistake, found[0], found[1]+"is not possible here: "+wanted, 1)
	}

	return mistake
}

// keysOf returns the keys of a type, sorted.
func keysOf(name string) []string {
	var keys []string

	for each := range keyTexts {
		if of, key, _ := strings.Cut(each, "."); of == name {
			keys = append(keys, key)
		}
	}

	slices.Sort(keys)

	return keys
}

func valueAt(node *yaml.Node, key string) *yaml.Node {
	if node == nil || node.Kind != yaml.MappingNode {
		return nil
	}

	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == key {
			return node.Content[i+1]
		}
	}

	return nil
}

// check validates the rules, whose nodes say their lines.
func (f *File) check(nodes []*yaml.Node) error {
	var (
		problems []error
		lines    = map[string]int{}
	)

	for i := range f.Rules {
		rule := &f.Rules[i]
		rule.line = nodes[i].Line

		problem := func(key string, err error) {
			if err == nil {
				return
			}

			line := rule.line
			node := nodes[i]

			for part := range strings.SplitSeq(key, ".") {
				if node = valueAt(node, part); node != nil {
					line = node.Line
				}
			}

			problems = append(problems, fmt.Errorf("%w: line %d: %w", ErrRule, line, unprefixed(err)))
		}

		if before, twice := lines[rule.Name]; twice && rule.Name != "" {
			problem("name", fmt.Errorf("%w: the rule of line %d has the name %q, too", ErrRule, before, rule.Name))
		}

		lines[rule.Name] = rule.line
		rule.check(problem)
	}

	return errors.Join(problems...)
}

// unprefixed leaves out the prefix that the caller writes before the line.
func unprefixed(err error) error {
	return textError(strings.TrimPrefix(err.Error(), ErrRule.Error()+": "))
}

type textError string

func (e textError) Error() string { return string(e) }

func (r *Rule) check(problem func(key string, err error)) {
	given := r.Act.parts()
	problem("name", r.checkName())
	problem("match.probability", checkProbability(r.Match.Probability))
	problem("until", r.Until.check())

	if len(given) == 0 {
		problem("act", fmt.Errorf("%w: act has nothing to do; it has one of %s", ErrRule, strings.Join(partNames(), ", ")))

		return
	}

	for _, part := range given {
		problem("act."+part.name, part.check(&r.Act))
	}

	switch {
	case r.Act.Condition != nil || r.Act.Start != nil:
		problem("act", r.checkAlone(len(given)))
	case !r.Match.At.isOfCalls():
		problem("match", r.checkPoint(given))
	default:
		problem(r.checkCalls(given))
	}
}

func (r *Rule) checkName() error {
	if strings.ContainsAny(r.Name, " \t\n,*?") {
		return fmt.Errorf("%w: the name %q has a space, a comma, * or ?", ErrRule, r.Name)
	}

	return nil
}

func checkProbability(given *float64) error {
	if given != nil && !(*given >= 0 && *given <= 1) {
		return fmt.Errorf("%w: the probability %v is not between 0 and 1", ErrRule, *given)
	}

	return nil
}

func (u *Until) check() error {
	switch {
	case u == nil:
		return nil
	case u.Hits < 0 || u.After < 0:
		return fmt.Errorf("%w: until is negative", ErrRule)
	case u.Hits == 0 && u.After == 0 && u.Time.IsZero():
		return fmt.Errorf("%w: until is empty; it has hits, after or time", ErrRule)
	default:
		return nil
	}
}

// checkAlone is for what calls do not trigger.
func (r *Rule) checkAlone(acts int) error {
	match := r.Match
	volume := match.Volume
	match.Volume = nil

	switch {
	case r.Act.Condition != nil && r.Until != nil && r.Until.Hits > 0:
		return fmt.Errorf("%w: a condition has no hits: until may have after or time", ErrRule)
	case acts > 1:
		return fmt.Errorf("%w: condition and start cannot be combined with other acts; write two rules", ErrRule)
	case !match.isZero() || r.Act.Start != nil && len(volume) > 0:
		return fmt.Errorf("%w: no call triggers a condition or a start: match may have a volume, for a condition, and nothing else", ErrRule)
	default:
		return nil
	}
}

func (m *Match) isZero() bool {
	return len(m.Method)+len(m.Volume)+len(m.Snapshot)+len(m.Group)+len(m.Node) == 0 &&
		m.Where.IsZero() && m.Calls.IsZero() && m.Probability == nil && m.At == ""
}

func (r *Rule) checkPoint(acts []part) error {
	for _, each := range acts {
		if !each.atPoints {
			return fmt.Errorf("%w: %s is not possible at %s, a point of an operation: before, delay.before, hold and crash are",
				ErrRule, each.name, r.Match.At)
		}
	}

	if len(r.Match.Method) > 0 || !r.Match.Where.IsZero() {
		return fmt.Errorf("%w: at the point %s there is no request: leave out method and where", ErrRule, r.Match.At)
	}

	if r.Act.Delay != nil && r.Act.Delay.After > 0 {
		return fmt.Errorf("%w: a delay at a point is before", ErrRule)
	}

	return nil
}

// checkCalls finds the methods that the rule applies to, and returns why there is none, with the key of the
// mistake.
func (r *Rule) checkCalls(acts []part) (key string, mistake error) {
	r.methods = map[string]bool{}

	for _, name := range rpcs {
		if !r.Match.Method.Match(name) {
			continue
		}

		at, err := r.appliesTo(methods[name], acts)

		switch {
		case err == nil:
			r.methods[name] = true
		case errors.Is(err, jq.ErrLimit):
			return at, err
		case mistake == nil || len(r.Match.Method) == 0:
			key, mistake = at, err // without a method that of the last one
		}
	}

	switch {
	case len(r.methods) > 0:
		return "", nil
	case mistake == nil:
		return "match.method", fmt.Errorf("%w: no RPC matches the method %s", ErrRule, strings.Join(r.Match.Method, ", "))
	default:
		return key, mistake
	}
}

// appliesTo returns why the rule has no meaning for a method, with the key of the mistake.
func (r *Rule) appliesTo(method protoreflect.MethodDescriptor, acts []part) (key string, mistake error) {
	if !r.Match.Where.IsZero() {
		if r.Match.Where.Assigns() {
			return "match.where", fmt.Errorf("%w: %s changes the request, and matches each; compare by ==", ErrRule, r.Match.Where)
		}

		if err := r.Match.Where.Check(method.Input(), nil); err != nil {
			return "match.where", err
		}
	}

	for _, each := range acts {
		if each.applies == nil {
			continue
		}

		if err := each.applies(&r.Act, method); err != nil {
			return "act." + each.name, err
		}
	}

	return "", nil
}

// Code is a gRPC code other than OK.
type Code codes.Code

// UnmarshalYAML implements yaml.Unmarshaler.
func (c *Code) UnmarshalYAML(node *yaml.Node) error {
	var parsed codes.Code

	quoted, err := json.Marshal(node.Value)
	if err == nil {
		err = parsed.UnmarshalJSON(quoted)
	}

	if err != nil || parsed == codes.OK || node.Value == "" {
		return mistake(node, "%q is no code of a failed call; one is RESOURCE_EXHAUSTED", node.Value)
	}

	*c = Code(parsed)

	return nil
}

// MarshalYAML implements yaml.Marshaler.
func (c Code) MarshalYAML() (any, error) { return c.String(), nil }

// String returns the name that the spec has for the code, such as NOT_FOUND.
func (c Code) String() string { return rpc.CodeName(codes.Code(c)) }

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *Detail) UnmarshalYAML(node *yaml.Node) error {
	var fields map[string]any

	err := node.Decode(&fields)
	if err != nil {
		return mistake(node, "a detail is a mapping with \"@type\"")
	}

	encoded, err := json.Marshal(fields)
	if err != nil {
		return mistake(node, "detail: %v", err)
	}

	d.message, d.node = &anypb.Any{}, node
	if err := protojson.Unmarshal(encoded, d.message); err != nil {
		return mistake(node, "detail: %v", err)
	}

	return nil
}

// MarshalYAML implements yaml.Marshaler.
func (d Detail) MarshalYAML() (any, error) { return d.node, nil }

// UnmarshalYAML implements yaml.Unmarshaler.
func (l *Loss) UnmarshalYAML(node *yaml.Node) error {
	return oneOf(node, (*string)(l), string(Hang), string(Reset))
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (v *View) UnmarshalYAML(node *yaml.Node) error {
	return oneOf(node, (*string)(v), string(NodeView), string(ControllerView))
}

// ConditionStatus is the severity of a condition of a volume.
type ConditionStatus string

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *ConditionStatus) UnmarshalYAML(node *yaml.Node) error {
	return oneOf(node, (*string)(s), health.Degraded.String(), health.Inaccessible.String(), health.DataLoss.String())
}

// untilTime is when the rule ends by its times, if it was added at a time; the zero time is never.
func (u *Until) untilTime(added time.Time) time.Time {
	if u == nil {
		return time.Time{}
	}

	ends := u.Time
	if after := added.Add(u.After); u.After > 0 && (ends.IsZero() || after.Before(ends)) {
		ends = after
	}

	return ends
}

func (u *Until) maxHits() int {
	if u == nil || u.Hits == 0 {
		return math.MaxInt
	}

	return u.Hits
}

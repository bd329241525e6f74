package faults

import (
	"fmt"
	"regexp"
	"strconv"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Path names fields of a message by the spec's names: volume.capacity_bytes,
// entries[0].volume.volume_id, entries[*].status, secrets["token"].
type Path struct {
	text  string
	steps []step
}

// step is a field, or what a field contains: the element of an index, all elements, or the value of
// a key.
type step struct {
	field protoreflect.Name
	index int
	key   string
	kind  stepKind
}

type stepKind int

const (
	stepField stepKind = iota
	stepIndex
	stepAll
	stepKey
)

// stepPattern matches the next step of a path.
var stepPattern = regexp.MustCompile(`^(?:\.?([a-z][a-z0-9_]*)|\[(\d+)\]|\[(\*)\]|\["([^"]*)"\])`)

func parsePath(text string) (Path, error) {
	path := Path{text: text}

	for rest := text; rest != ""; {
		found := stepPattern.FindStringSubmatch(rest)
		if len(found) == 0 || !isStep(found, rest == text) {
			return Path{}, fmt.Errorf("%w: %q is not a path such as volume.capacity_bytes, entries[0].volume or secrets[\"token\"]", ErrRule, text)
		}

		switch {
		case found[1] != "":
			path.steps = append(path.steps, step{kind: stepField, field: protoreflect.Name(found[1])})
		case found[2] != "":
			index, err := strconv.Atoi(found[2])
			if err != nil {
				return Path{}, fmt.Errorf("%w: path %q: %w", ErrRule, text, err)
			}

			path.steps = append(path.steps, step{kind: stepIndex, index: index})
		case found[3] != "":
			path.steps = append(path.steps, step{kind: stepAll})
		default:
			path.steps = append(path.steps, step{kind: stepKey, key: found[4]})
		}

		rest = rest[len(found[0]):]
	}

	if len(path.steps) == 0 {
		return Path{}, fmt.Errorf("%w: the path is empty", ErrRule)
	}

	return path, nil
}

// isStep reports whether the match of stepPattern is a step: the first one is a field without a dot,
// further fields have one.
func isStep(found []string, first bool) bool {
	if first {
		return found[0] == found[1]
	}

	return found[0] != found[1]
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (p *Path) UnmarshalYAML(node *yaml.Node) error {
	parsed, err := parsePath(node.Value)
	if err != nil {
		return mistake(node, "%v", err)
	}

	*p = parsed

	return nil
}

// MarshalYAML implements yaml.Marshaler.
func (p Path) MarshalYAML() (any, error) { return p.text, nil }

// IsZero reports whether the path was left out.
func (p Path) IsZero() bool { return p.text == "" }

// position is the type of what a path names: a field, or an element of it.
type position struct {
	field   protoreflect.FieldDescriptor
	element bool
}

// isContainer reports whether the position is a whole list or map.
func (p position) isContainer() bool { return !p.element && (p.field.IsList() || p.field.IsMap()) }

// kind is the kind of the value, of a map's value for its element.
func (p position) value() protoreflect.FieldDescriptor {
	if p.field.IsMap() {
		return p.field.MapValue()
	}

	return p.field
}

// resolve returns what the path names in messages of a type, false if they have no such field.
func (p Path) resolve(in protoreflect.MessageDescriptor) (position, bool) {
	var at position

	for i, each := range p.steps {
		if each.kind == stepField {
			if i > 0 {
				if at.isContainer() || at.value().Kind() != protoreflect.MessageKind {
					return position{}, false
				}

				in = at.value().Message()
			}

			field := in.Fields().ByName(each.field)
			if field == nil {
				return position{}, false
			}

			at = position{field: field}

			continue
		}

		if i == 0 || at.element || at.field.IsMap() != (each.kind == stepKey) || !at.field.IsMap() && !at.field.IsList() {
			return position{}, false
		}

		if each.kind == stepKey && at.field.MapKey().Kind() != protoreflect.StringKind {
			return position{}, false
		}

		at.element = true
	}

	return at, true
}

// slot is one position of one message.
type slot struct {
	position

	// value is the present one, has whether it is set.
	value protoreflect.Value
	has   bool
	set   func(protoreflect.Value)
	clear func()
}

// slots returns the positions of a message that the path names: several for [*], none where a list has
// no such element. With mutable, messages on the way are made, and the positions may be set. The path
// must resolve.
func (p Path) slots(in protoreflect.Message, mutable bool) []slot {
	return slotsOf(p.steps, in, mutable)
}

func slotsOf(steps []step, in protoreflect.Message, mutable bool) []slot {
	field := in.Descriptor().Fields().ByName(steps[0].field)
	rest := steps[1:]

	if len(rest) == 0 {
		return []slot{{
			position: position{field: field}, value: in.Get(field), has: in.Has(field),
			set: func(value protoreflect.Value) { in.Set(field, value) }, clear: func() { in.Clear(field) },
		}}
	}

	if rest[0].kind != stepField {
		return elementsOf(rest, in, field, mutable)
	}

	inner := in.Get(field).Message()
	if mutable {
		inner = in.Mutable(field).Message()
	}

	return slotsOf(rest, inner, mutable)
}

// elementsOf continues with the elements of a list or map that the first step names.
func elementsOf(steps []step, in protoreflect.Message, field protoreflect.FieldDescriptor, mutable bool) []slot {
	var found []slot

	if field.IsMap() {
		found = mapElements(steps[0].key, in, field, mutable)
	} else {
		found = listElements(steps[0], in, field, mutable)
	}

	if len(steps) == 1 {
		return found
	}

	var inner []slot
	for _, each := range found {
		inner = append(inner, slotsOf(steps[1:], each.value.Message(), mutable)...)
	}

	return inner
}

func mapElements(key string, in protoreflect.Message, field protoreflect.FieldDescriptor, mutable bool) []slot {
	values, name := in.Get(field).Map(), protoreflect.ValueOfString(key).MapKey()
	if mutable {
		values = in.Mutable(field).Map()
	}

	value, has := values.Get(name), values.Has(name)
	if !has {
		value = field.MapValue().Default()
	}

	return []slot{{
		position: position{field: field, element: true}, value: value, has: has,
		set: func(value protoreflect.Value) { values.Set(name, value) }, clear: func() { values.Clear(name) },
	}}
}

func listElements(which step, in protoreflect.Message, field protoreflect.FieldDescriptor, mutable bool) []slot {
	list := in.Get(field).List()
	if mutable {
		list = in.Mutable(field).List()
	}

	var found []slot

	for i := range list.Len() {
		if which.kind == stepIndex && i != which.index {
			continue
		}

		found = append(found, slot{
			position: position{field: field, element: true}, value: list.Get(i), has: true,
			set: func(value protoreflect.Value) { list.Set(i, value) }, clear: func() { remove(list, i) },
		})
	}

	// From the end, so that removing one leaves the indexes of the others.
	for i, j := 0, len(found)-1; i < j; i, j = i+1, j-1 {
		found[i], found[j] = found[j], found[i]
	}

	return found
}

func remove(list protoreflect.List, at int) {
	for i := at + 1; i < list.Len(); i++ {
		list.Set(i-1, list.Get(i))
	}

	list.Truncate(list.Len() - 1)
}

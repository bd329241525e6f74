package faults

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Expression compares a field of a request with a value: capacity_range.required_bytes > 10Gi,
// staging_target_path == "", parameters["pool"] matches fast*. Null is a field that is not set.
type Expression struct {
	text     string
	path     Path
	operator string
	operand  string
	// null and pattern are the operand if it is null, or a glob.
	null    bool
	pattern Glob
}

var expressionPattern = regexp.MustCompile(`^\s*(\S+)\s+(==|!=|<=|>=|<|>|matches)\s+(.*?)\s*$`)

func parseExpression(text string) (Expression, error) {
	parts := expressionPattern.FindStringSubmatch(text)
	if parts == nil {
		return Expression{}, fmt.Errorf(
			"%w: %q is not PATH OPERATOR VALUE with the operator ==, !=, <, <=, >, >= or matches, separated by spaces", ErrRule, text)
	}

	path, err := parsePath(parts[1])
	if err != nil {
		return Expression{}, err
	}

	parsed := Expression{text: text, path: path, operator: parts[2], operand: parts[3], null: parts[3] == "null"}

	if unquoted, err := strconv.Unquote(parts[3]); err == nil {
		parsed.operand = unquoted
	} else if parts[3] == "" {
		return Expression{}, fmt.Errorf("%w: %q has no value; the empty text is \"\"", ErrRule, text)
	}

	if parsed.operator == "matches" {
		parsed.pattern = newGlob(parsed.operand)
	}

	if parsed.null && parsed.operator != "==" && parsed.operator != "!=" {
		return Expression{}, fmt.Errorf("%w: %q: null can be compared with == and != only", ErrRule, text)
	}

	return parsed, nil
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (e *Expression) UnmarshalYAML(node *yaml.Node) error {
	parsed, err := parseExpression(node.Value)
	if err != nil {
		return mistake(node, "%v", err)
	}

	*e = parsed

	return nil
}

// MarshalYAML implements yaml.Marshaler.
func (e Expression) MarshalYAML() (any, error) { return e.text, nil }

// check returns why the expression cannot be evaluated for messages of a type: it has no such field,
// or the value is of another type.
func (e Expression) check(in protoreflect.MessageDescriptor) error {
	at, ok := e.path.resolve(in)

	switch {
	case !ok:
		return fmt.Errorf("%w: %s has no field %s", ErrRule, in.Name(), e.path.text)
	case e.null:
		return nil
	case at.isContainer() || at.value().Kind() == protoreflect.MessageKind:
		return fmt.Errorf("%w: %s is not a single value; compare it with null, or one of its elements", ErrRule, e.path.text)
	}

	kind := at.value().Kind()
	isText := kind == protoreflect.StringKind

	switch e.operator {
	case "==", "!=":
	case "matches":
		if !isText {
			return fmt.Errorf("%w: %s is not a text, which matches requires", ErrRule, e.path.text)
		}
	default:
		if isText || kind == protoreflect.BoolKind || kind == protoreflect.BytesKind {
			return fmt.Errorf("%w: %s is not a number, which %s requires", ErrRule, e.path.text, e.operator)
		}
	}

	_, err := e.valueFor(at.value())

	return err
}

// valueFor returns the operand as a value of the field.
func (e Expression) valueFor(field protoreflect.FieldDescriptor) (protoreflect.Value, error) {
	var given any = e.operand
	if field.Kind() == protoreflect.BoolKind {
		if parsed, err := strconv.ParseBool(e.operand); err == nil {
			given = parsed
		}
	}

	return convertOne(field, given)
}

// Holds reports whether the expression holds for a message. Of several fields, with [*], one is
// enough. It does not hold where the message has no such field.
func (e Expression) Holds(in protoreflect.Message) bool {
	if _, ok := e.path.resolve(in.Descriptor()); !ok {
		return false
	}

	return slices.ContainsFunc(e.path.slots(in, false), e.holdsFor)
}

func (e Expression) holdsFor(at slot) bool {
	if e.null {
		return at.has == (e.operator == "!=")
	}

	if e.operator == "matches" {
		return e.pattern.Match(at.value.String())
	}

	wanted, err := e.valueFor(at.position.value())
	if err != nil || at.isContainer() {
		return false
	}

	switch e.operator {
	case "==":
		return at.value.Equal(wanted)
	case "!=":
		return !at.value.Equal(wanted)
	}

	order := cmp.Compare(numberOf(at.value), numberOf(wanted))

	switch e.operator {
	case "<":
		return order < 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	default:
		return order >= 0
	}
}

func numberOf(value protoreflect.Value) int64 {
	switch value := value.Interface().(type) {
	case int32:
		return int64(value)
	case int64:
		return value
	case uint32:
		return int64(value)
	case uint64:
		return int64(value)
	case protoreflect.EnumNumber:
		return int64(value)
	default:
		return 0
	}
}

package faults

import (
	"context"
	"errors"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/touchstone-csi/touchstone/internal/lab/jq"
)

// The variables of a patch, which has the response as its input.
const (
	requestVariable  = "$request"
	previousVariable = "$previous"
	hitVariable      = "$hit"
)

// Filter is a jq program: a predicate of requests, or a patch of responses.
type Filter struct{ *jq.Program }

// UnmarshalYAML implements yaml.Unmarshaler.
func (f *Filter) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind != yaml.ScalarNode {
		return mistake(node, "a jq program is a text, such as .volume.capacity_bytes *= 2")
	}

	program, err := jq.Parse(node.Value, requestVariable, previousVariable, hitVariable)
	if err != nil {
		return mistake(node, "%v", err)
	}

	f.Program = program

	return nil
}

// MarshalYAML implements yaml.Marshaler.
func (f Filter) MarshalYAML() (any, error) { return f.String(), nil }

// IsZero reports whether the filter was left out.
func (f Filter) IsZero() bool { return f.Program == nil }

// usesPrevious reports whether the patch needs the previous response.
func (f Filter) usesPrevious() bool {
	return !f.IsZero() && strings.Contains(f.String(), previousVariable)
}

// checkPatch returns why the patch cannot be one of the method's responses: a mistake of the program, or an
// output for a response with all fields that is none. It may fail for that response, as it depends on what
// the response has.
func (a *Act) checkPatch(method protoreflect.MethodDescriptor) error {
	types := jq.Types{requestVariable: method.Input(), previousVariable: method.Output(), hitVariable: nil}
	if err := a.Patch.Check(method.Output(), types); err != nil {
		return err
	}

	request, response := newMessage(method.Input()), newMessage(method.Output())
	fill(request)
	fill(response)

	output, err := a.Patch.Apply(context.Background(), jq.FromMessage(response.Interface()), jq.FromMessage(request.Interface()), nil, 1)

	switch {
	case err == nil:
		return jq.ToMessage(output, newMessage(method.Output()).Interface())
	case errors.Is(err, jq.ErrLimit), errors.Is(err, jq.ErrOutputs):
		return err
	default:
		return nil // it may succeed for a response with other values
	}
}

// fill sets all messages of a message, and one element of its lists.
func fill(message protoreflect.Message) {
	fields := message.Descriptor().Fields()

	for i := range fields.Len() {
		field := fields.Get(i)

		switch {
		case field.IsList():
			list := message.Mutable(field).List()
			list.Append(list.NewElement())

			if field.Message() != nil {
				fill(list.Get(0).Message())
			}
		case field.IsMap():
		case field.Message() != nil:
			fill(message.Mutable(field).Message())
		}
	}
}

// patched returns a response as a patch changes it. Fields that the spec does not have stay where their
// message stays.
func (f Filter) patched(ctx context.Context, response, request, previous proto.Message, hit int) (proto.Message, error) {
	var before any
	if previous != nil {
		before = jq.FromMessage(previous)
	}

	output, err := f.Apply(ctx, jq.FromMessage(response), jq.FromMessage(request), before, hit)
	if err != nil {
		return nil, err
	}

	made := response.ProtoReflect().New()
	if err := jq.ToMessage(output, made.Interface()); err != nil {
		return nil, err
	}

	keepUnknown(response.ProtoReflect(), made)

	return made.Interface(), nil
}

// keepUnknown copies unknown fields, in lists of the same length also those of their elements.
func keepUnknown(from, to protoreflect.Message) {
	to.SetUnknown(from.GetUnknown())
	to.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.Message() == nil || field.IsMap() || !from.Has(field):
		case !field.IsList():
			keepUnknown(from.Get(field).Message(), value.Message())
		case from.Get(field).List().Len() == value.List().Len():
			for i := range value.List().Len() {
				keepUnknown(from.Get(field).List().Get(i).Message(), value.List().Get(i).Message())
			}
		}

		return true
	})
}

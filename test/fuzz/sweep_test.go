package fuzz_test

import (
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// oneOf keeps `make test` short.
const oneOf = 96

// TestSweepSetsEachField of a valid request, one after the other, to each unusual value. A fuzzer
// that knows nothing of the driver's wishes takes long to find requests with one fault only. One of
// oneOf is tried, or with TOUCHSTONE_SWEEP=all each.
func TestSweepSetsEachField(t *testing.T) {
	w := newWorld(t)
	random := rand.New(rand.NewPCG(1, 1))
	calls := 0

	for _, each := range methods(t, "") {
		for example := range examples()[each.name] {
			sweep(each.valid()[example], func(request proto.Message) {
				if os.Getenv("TOUCHSTONE_SWEEP") != "all" && random.IntN(oneOf) > 0 {
					return
				}

				wire, err := proto.Marshal(request)
				require.NoError(t, err)
				t.Run(each.name, func(t *testing.T) { _ = w.send(t, each, wire) })

				calls++
			})
		}
	}

	t.Logf("%d calls", calls)
}

// TestExamplesAreAccepted proves that what becomes strange was valid.
func TestExamplesAreAccepted(t *testing.T) {
	w := newWorld(t)

	for _, each := range methods(t, "") {
		for example := range examples()[each.name] {
			wire, err := proto.Marshal(each.valid()[example])
			require.NoError(t, err)
			t.Run(each.name, func(t *testing.T) { require.NoError(t, w.send(t, each, wire)) })
		}
	}
}

// sweep calls visit with each variant of valid.
func sweep(valid proto.Message, visit func(proto.Message)) {
	for at := range settableFields(valid.ProtoReflect()) {
		for value := 0; ; value++ {
			variant := proto.Clone(valid)
			if !settableFields(variant.ProtoReflect())[at](value) {
				break
			}

			visit(variant)
		}
	}
}

// settableFields returns the settable fields within a message, each as a function that sets it
// to the value of that index and says whether there is one.
func settableFields(m protoreflect.Message) []func(index int) bool {
	var all []func(int) bool

	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)

		switch {
		case field.Name() == "secrets": // the driver ignores them
		case field.IsMap():
			all = append(all, entries(m, field)...)
		case field.IsList() && field.Message() != nil:
			for at := range m.Get(field).List().Len() {
				all = append(all, settableFields(m.Mutable(field).List().Get(at).Message())...)
			}
		case field.Message() != nil:
			if m.Has(field) {
				all = append(all, settableFields(m.Mutable(field).Message())...)
			}
		default:
			all = append(all, place(m, field))
		}
	}

	return all
}

func place(m protoreflect.Message, field protoreflect.FieldDescriptor) func(int) bool {
	return func(index int) bool {
		value, ok := strange(field, index)

		switch {
		case ok && field.IsList():
			m.Mutable(field).List().Append(value)
		case ok:
			m.Set(field, value)
		}

		return ok
	}
}

func entries(m protoreflect.Message, field protoreflect.FieldDescriptor) []func(int) bool {
	var all []func(int) bool

	for _, key := range parameterKeys() {
		all = append(all, func(index int) bool {
			value, ok := strange(field.MapValue(), index)
			if ok {
				m.Mutable(field).Map().Set(protoreflect.ValueOfString(key).MapKey(), value)
			}

			return ok
		})
	}

	return all
}

// strange is the value of that index for a field, if there is one.
func strange(field protoreflect.FieldDescriptor, index int) (protoreflect.Value, bool) {
	const enums = 16

	switch field.Kind() {
	case protoreflect.StringKind:
		if all := texts(); index < len(all) {
			return protoreflect.ValueOfString(all[index]), true
		}
	case protoreflect.Int64Kind:
		if all := numbers(); index < len(all) {
			return protoreflect.ValueOfInt64(all[index]), true
		}
	case protoreflect.Int32Kind:
		if all := numbers(); index < len(all) {
			return protoreflect.ValueOfInt32(int32(all[index])), true // cut off is as strange as any
		}
	case protoreflect.EnumKind:
		if index < enums {
			return protoreflect.ValueOfEnum(protoreflect.EnumNumber(index - 1)), true
		}
	case protoreflect.BoolKind:
		if index < 2 {
			return protoreflect.ValueOfBool(index == 0), true
		}
	default:
	}

	return protoreflect.Value{}, false
}

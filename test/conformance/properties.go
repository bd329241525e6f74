package conformance

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// properties returns what a response shows beyond its code: which fields it has, and how it
// compares with the request.
//
//	has F       a field has a value; a bool that is given: has F false, has F.value
//	lacks F     one has none
//	echoes F    the response has a field of the request with the same value
//
// and the rules that it keeps: see rules.
func properties(request, response proto.Message) []string {
	found := append(has("has ", response.ProtoReflect()), lacks("lacks ", response.ProtoReflect())...)
	found = append(found, echoes(request.ProtoReflect(), response.ProtoReflect())...)
	kept, _ := rulesOf(request, response)

	return append(found, kept...)
}

// lacks returns the fields without a value. A bool or a number has none to lack.
func lacks(path string, message protoreflect.Message) []string {
	var found []string

	for i := range message.Descriptor().Fields().Len() {
		field := message.Descriptor().Fields().Get(i)
		name := path + string(field.Name())

		switch {
		case field.Kind() == protoreflect.BoolKind || field.Kind() == protoreflect.Int64Kind:
		case !message.Has(field):
			found = append(found, name)
		case field.Kind() == protoreflect.MessageKind && !field.IsList() && !field.IsMap():
			found = append(found, lacks(name+".", message.Get(field).Message())...)
		}
	}

	return found
}

func has(path string, message protoreflect.Message) []string {
	var found []string

	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		name := path + string(field.Name())
		found = append(found, name)

		switch {
		case field.IsMap() || field.Kind() != protoreflect.MessageKind:
		case field.IsList():
			for i := range value.List().Len() {
				found = append(found, has(name+".", value.List().Get(i).Message())...)
			}
		case !isFalse(value.Message()):
			found = append(found, has(name+".", value.Message())...)
		default:
			found = append(found, name+" false")
		}

		return true
	})

	return found
}

// isFalse reports whether a message is the value of a bool that is given, and is false.
func isFalse(message protoreflect.Message) bool {
	given, ok := message.Interface().(*wrapperspb.BoolValue)

	return ok && !given.GetValue()
}

// echoes returns the fields of a request that the response has with the same value, at whatever
// depth: "echoes volume_content_source".
func echoes(request, response protoreflect.Message) []string {
	var found []string

	request.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if echoed(response, field, value) {
			found = append(found, "echoes "+string(field.Name()))
		}

		return true
	})

	return found
}

func echoed(message protoreflect.Message, wanted protoreflect.FieldDescriptor, value protoreflect.Value) bool {
	same := false

	message.Range(func(field protoreflect.FieldDescriptor, other protoreflect.Value) bool {
		switch {
		case field.Kind() == wanted.Kind() && field.IsList() == wanted.IsList() && field.IsMap() == wanted.IsMap() && isSameMessage(field, wanted) &&
			other.Equal(value):
			same = true
		case field.Kind() == protoreflect.MessageKind && !field.IsList() && !field.IsMap():
			same = same || echoed(other.Message(), wanted, value)
		}

		return !same
	})

	return same
}

func isSameMessage(a, b protoreflect.FieldDescriptor) bool {
	return a.Kind() != protoreflect.MessageKind || a.Message().FullName() == b.Message().FullName()
}

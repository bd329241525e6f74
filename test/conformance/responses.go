package conformance

import (
	"fmt"
	"unicode"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	// maxString and maxMap are the general limits in bytes (CSI v1.13, Size Limits).
	maxString = 128
	maxMap    = 4096
	// maxNodeID is the limit of NodeGetInfoResponse.node_id.
	maxNodeID = 256
)

// notNegative are the numbers of responses that must not be negative.
var notNegative = map[protoreflect.Name]bool{
	"capacity_bytes": true, "size_bytes": true, "available_capacity": true, "maximum_volume_size": true, "minimum_volume_size": true,
	"available": true, "total": true, "used": true, "max_volumes_per_node": true,
}

// Problems returns which rules a response breaks. Messages of other services than CSI's have none.
func Problems(request, answer any, err error) []string {
	message, ok := answer.(proto.Message)
	if !ok || message.ProtoReflect().Descriptor().ParentFile().Package() != "csi.v1" {
		return nil
	}

	if err != nil {
		return problemsOfStatus(status.Convert(err))
	}

	found := append(problemsOf(string(message.ProtoReflect().Descriptor().Name()), message.ProtoReflect()), problemsOfPage(request, answer)...)

	if asked, ok := request.(proto.Message); ok {
		_, broken := rulesOf(asked, message)
		found = append(found, broken...)
	}

	return found
}

func problemsOfStatus(failed *status.Status) []string {
	var found []string

	if failed.Code() > codes.Unauthenticated {
		found = append(found, fmt.Sprintf("%d is no canonical code", failed.Code()))
	}

	if failed.Message() == "" {
		found = append(found, "an error has no message")
	}

	// Error Scheme: the details MUST be empty.
	if len(failed.Proto().GetDetails()) > 0 {
		found = append(found, fmt.Sprintf("status.details has %d entries", len(failed.Proto().GetDetails())))
	}

	return found
}

func problemsOf(path string, message protoreflect.Message) []string {
	var found []string

	descriptor := message.Descriptor()

	for _, name := range Required[descriptor.FullName()] {
		// A number or a bool has a default, which is not sent.
		field := descriptor.Fields().ByName(name)
		if number := field.Kind() == protoreflect.BoolKind || field.Kind() == protoreflect.Int64Kind; !number && !message.Has(field) {
			found = append(found, fmt.Sprintf("%s.%s is REQUIRED and missing", path, name))
		}
	}

	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		found = append(found, problemsOfField(path+"."+string(field.Name()), field, value)...)

		return true
	})

	return found
}

func problemsOfField(path string, field protoreflect.FieldDescriptor, value protoreflect.Value) []string {
	var found []string

	switch {
	case field.IsMap():
		bytes := 0

		value.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
			bytes += len(key.String()) + len(value.String())
			found = append(found, problemsOfText(path, key.String(), maxMap)...)
			found = append(found, problemsOfText(path, value.String(), maxMap)...)

			return true
		})

		if bytes > maxMap {
			found = append(found, fmt.Sprintf("%s has %d bytes, more than %d", path, bytes, maxMap))
		}
	case field.IsList():
		for i := range value.List().Len() {
			found = append(found, problemsOfValue(fmt.Sprintf("%s[%d]", path, i), field, value.List().Get(i))...)
		}
	default:
		found = problemsOfValue(path, field, value)
	}

	return found
}

func problemsOfValue(path string, field protoreflect.FieldDescriptor, value protoreflect.Value) []string {
	switch field.Kind() {
	case protoreflect.MessageKind:
		if size, ok := value.Message().Interface().(*wrapperspb.Int64Value); ok && notNegative[field.Name()] && size.GetValue() < 0 {
			return []string{fmt.Sprintf("%s is %d", path, size.GetValue())}
		}

		return problemsOf(path, value.Message())
	case protoreflect.StringKind:
		limit := maxString
		if field.Name() == "node_id" {
			limit = maxNodeID
		}

		return problemsOfText(path, value.String(), limit)
	case protoreflect.Int64Kind, protoreflect.Int32Kind:
		if notNegative[field.Name()] && value.Int() < 0 {
			return []string{fmt.Sprintf("%s is %d", path, value.Int())}
		}
	}

	return nil
}

func problemsOfText(path, text string, limit int) []string {
	var found []string

	if len(text) > limit {
		found = append(found, fmt.Sprintf("%s has %d bytes, more than %d: %q", path, len(text), limit, text))
	}

	for _, r := range text {
		if unicode.IsControl(r) && r != '\t' && r != '\n' && r != '\r' {
			found = append(found, fmt.Sprintf("%s has the control character %q", path, r))
		}
	}

	return found
}

// problemsOfPage compares a page with what was asked for.
func problemsOfPage(request, answer any) []string {
	asked, paged := request.(interface{ GetMaxEntries() int32 })
	listed, hasToken := answer.(interface{ GetNextToken() string })

	if !paged || !hasToken {
		return nil
	}

	entries := entriesOf(answer.(proto.Message))

	var found []string

	if most := int(asked.GetMaxEntries()); most > 0 && entries > most {
		found = append(found, fmt.Sprintf("%d entries, max_entries is %d", entries, most))
	}

	if listed.GetNextToken() != "" && entries == 0 {
		found = append(found, "next_token without an entry")
	}

	return found
}

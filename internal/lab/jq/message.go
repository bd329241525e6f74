package jq

import (
	"encoding/base64"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"time"

	"github.com/itchyny/gojq"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// FromMessage returns a message as JSON has it, with the spec's field names, and with numbers where
// protojson writes texts. Enums are their names, bytes base64, timestamps RFC 3339, and wrappers of
// google.protobuf their values. Fields that are not set have their default; messages and fields of a
// oneof are absent then.
func FromMessage(message proto.Message) any { return fromMessage(message.ProtoReflect()) }

func fromMessage(message protoreflect.Message) any {
	if at, ok := message.Interface().(*timestamppb.Timestamp); ok {
		return at.AsTime().Format(time.RFC3339Nano)
	}

	if value := wrapped(message.Descriptor()); value != nil {
		return fromValue(value, message.Get(value))
	}

	fields := message.Descriptor().Fields()
	made := make(map[string]any, fields.Len())

	for i := range fields.Len() {
		if field := fields.Get(i); !field.HasPresence() || message.Has(field) {
			made[string(field.Name())] = fromField(field, message.Get(field))
		}
	}

	return made
}

// wrapped returns the field of a wrapper, such as google.protobuf.BoolValue, nil for other messages.
func wrapped(message protoreflect.MessageDescriptor) protoreflect.FieldDescriptor {
	if message.ParentFile().Package() != "google.protobuf" {
		return nil
	}

	return message.Fields().ByName("value")
}

func fromField(field protoreflect.FieldDescriptor, value protoreflect.Value) any {
	switch {
	case field.IsList():
		list := make([]any, value.List().Len())
		for i := range list {
			list[i] = fromValue(field, value.List().Get(i))
		}

		return list
	case field.IsMap():
		made := make(map[string]any, value.Map().Len())

		value.Map().Range(func(key protoreflect.MapKey, each protoreflect.Value) bool {
			made[key.String()] = fromValue(field.MapValue(), each)

			return true
		})

		return made
	default:
		return fromValue(field, value)
	}
}

func fromValue(field protoreflect.FieldDescriptor, value protoreflect.Value) any {
	switch value := value.Interface().(type) {
	case protoreflect.Message:
		return fromMessage(value)
	case protoreflect.EnumNumber:
		if known := field.Enum().Values().ByNumber(value); known != nil {
			return string(known.Name())
		}

		return int(value)
	case []byte:
		return base64.StdEncoding.EncodeToString(value)
	case int32:
		return int(value)
	case int64:
		return int(value)
	case uint32:
		return int(value)
	case uint64:
		if value > math.MaxInt {
			return new(big.Int).SetUint64(value)
		}

		return int(value)
	case float32:
		return float64(value)
	default: // string, bool, float64
		return value
	}
}

// position is where protojson has found a mistake, with white space that it varies.
var position = regexp.MustCompile(`^proto:\s\(line [0-9:]+\):\s`)

// MaxBytes bounds the message that ToMessage makes, as JSON. It is four times what a gRPC client reads by
// default.
const MaxBytes = 16 << 20

// ToMessage sets a message to a value of FromMessage's form; enums may be numbers, and null is a field that
// is not set. Error: ErrProgram, for a field that the message does not have, and for a value that a field
// cannot have.
func ToMessage(value any, into proto.Message) error {
	text, err := gojq.Marshal(value)

	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrProgram, err)
	case len(text) > MaxBytes:
		return fmt.Errorf("%w: the message would have %d bytes, and may have %d", ErrProgram, len(text), MaxBytes)
	}

	if err := protojson.Unmarshal(text, into); err != nil {
		// Without the position in a text that no user has seen.
		why := position.ReplaceAllString(err.Error(), "")

		return fmt.Errorf("%w: the output is no whole %s: %s", ErrProgram, into.ProtoReflect().Descriptor().Name(), why)
	}

	return nil
}

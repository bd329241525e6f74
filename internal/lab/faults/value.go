package faults

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/touchstone-csi/touchstone/internal/quantity"
)

// convert makes a value of YAML the value of a field, or of an element of it. Numbers may be
// quantities such as 10Gi, enums names or numbers (unknown ones too), timestamps seconds or RFC 3339,
// and messages mappings.
func (p position) convert(given any) (protoreflect.Value, error) {
	if !p.isContainer() {
		return convertOne(p.value(), given)
	}

	made := newMessage(p.field.ContainingMessage()).NewField(p.field)

	switch given := given.(type) {
	case []any:
		if !p.field.IsList() {
			break
		}

		for _, each := range given {
			value, err := convertOne(p.field, each)
			if err != nil {
				return protoreflect.Value{}, err
			}

			made.List().Append(value)
		}

		return made, nil
	case map[string]any:
		if !p.field.IsMap() {
			break
		}

		for key, each := range given {
			value, err := convertOne(p.field.MapValue(), each)
			if err != nil {
				return protoreflect.Value{}, err
			}

			made.Map().Set(protoreflect.ValueOfString(key).MapKey(), value)
		}

		return made, nil
	}

	return protoreflect.Value{}, errValue(p.field, given)
}

func errValue(field protoreflect.FieldDescriptor, given any) error {
	kind := field.Kind().String()
	if field.Kind() == protoreflect.MessageKind {
		kind = string(field.Message().Name())
	}

	return fmt.Errorf("%w: %v is not a value of %s, which is of type %s", ErrRule, given, field.Name(), kind)
}

func convertOne(field protoreflect.FieldDescriptor, given any) (protoreflect.Value, error) {
	switch field.Kind() {
	case protoreflect.StringKind:
		if text, ok := textOf(given); ok {
			return protoreflect.ValueOfString(text), nil
		}
	case protoreflect.BytesKind:
		if text, ok := textOf(given); ok {
			return protoreflect.ValueOfBytes([]byte(text)), nil
		}
	case protoreflect.BoolKind:
		if value, ok := given.(bool); ok {
			return protoreflect.ValueOfBool(value), nil
		}
	case protoreflect.EnumKind:
		if number, ok := enumOf(field.Enum(), given); ok {
			return protoreflect.ValueOfEnum(number), nil
		}
	case protoreflect.MessageKind:
		return convertMessage(field, given)
	default:
		if number, ok := integerOf(given); ok && inRange(field.Kind(), number) {
			return integerValue(field.Kind(), number), nil
		}
	}

	return protoreflect.Value{}, errValue(field, given)
}

// inRange reports whether a field of the kind can have the number.
func inRange(kind protoreflect.Kind, number int64) bool {
	switch kind {
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind, protoreflect.EnumKind:
		return number == int64(int32(number))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return number == int64(uint32(number))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return number >= 0
	default:
		return true
	}
}

func integerValue(kind protoreflect.Kind, number int64) protoreflect.Value {
	switch kind {
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(number))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(number))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(uint64(number))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(number))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(number))
	default:
		return protoreflect.ValueOfInt64(number)
	}
}

func textOf(given any) (string, bool) {
	switch given := given.(type) {
	case string:
		return given, true
	case int, bool, float64:
		return fmt.Sprint(given), true
	default:
		return "", false
	}
}

func integerOf(given any) (int64, bool) {
	switch given := given.(type) {
	case int:
		return int64(given), true
	case int64:
		return given, true
	case uint64:
		return int64(given), given <= math.MaxInt64
	case string:
		number, err := strconv.ParseInt(given, 10, 64)
		if err != nil {
			number, err = quantity.Parse(given)
		}

		return number, err == nil
	default:
		return 0, false
	}
}

func enumOf(enum protoreflect.EnumDescriptor, given any) (protoreflect.EnumNumber, bool) {
	switch given := given.(type) {
	case int:
		return protoreflect.EnumNumber(given), inRange(protoreflect.EnumKind, int64(given))
	case string:
		if value := enum.Values().ByName(protoreflect.Name(given)); value != nil {
			return value.Number(), true
		}

		number, err := strconv.ParseInt(given, 10, 32)

		return protoreflect.EnumNumber(number), err == nil
	default:
		return 0, false
	}
}

// convertMessage makes a message: of a mapping of its fields, or, for a timestamp or a wrapper of a
// scalar, of the scalar.
func convertMessage(field protoreflect.FieldDescriptor, given any) (protoreflect.Value, error) {
	message := newMessage(field.Message())

	if fields, ok := given.(map[string]any); ok {
		for name, each := range fields {
			inner := message.Descriptor().Fields().ByName(protoreflect.Name(name))
			if inner == nil {
				return protoreflect.Value{}, fmt.Errorf("%w: %s has no field %q", ErrRule, message.Descriptor().Name(), name)
			}

			value, err := position{field: inner}.convert(each)
			if err != nil {
				return protoreflect.Value{}, err
			}

			message.Set(inner, value)
		}

		return protoreflect.ValueOfMessage(message), nil
	}

	switch message.Interface().(type) {
	case *timestamppb.Timestamp:
		if at, ok := timeOf(given); ok {
			return protoreflect.ValueOfMessage(timestamppb.New(at).ProtoReflect()), nil
		}
	default:
		wrapper := message.Descriptor().ParentFile().Package() == "google.protobuf"
		if inner := message.Descriptor().Fields().ByName("value"); inner != nil && wrapper {
			value, err := convertOne(inner, given)
			if err == nil {
				message.Set(inner, value)
			}

			return protoreflect.ValueOfMessage(message), err
		}
	}

	return protoreflect.Value{}, errValue(field, given)
}

func timeOf(given any) (time.Time, bool) {
	switch given := given.(type) {
	case time.Time:
		return given, true
	case int:
		return time.Unix(int64(given), 0), true
	case string:
		at, err := time.Parse(time.RFC3339, given)

		return at, err == nil
	default:
		return time.Time{}, false
	}
}

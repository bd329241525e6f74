package faults

import (
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/code"

	"github.com/touchstone-csi/touchstone/internal/health"
)

// schemaFile is the JSON schema of files of rules, for editors. TOUCHSTONE_UPDATE=1 writes it.
const schemaFile = "../../../examples/faults/schema.json"

func TestSchemaMatchesTheTypes(t *testing.T) {
	t.Parallel()

	file := schemaOf(reflect.TypeFor[File]())
	rule := schemaOf(reflect.TypeFor[Rule]())

	// A file may be a list of rules or a single rule, too.
	want, err := json.MarshalIndent(object{
		"$schema": "https://json-schema.org/draft/2020-12/schema",
		"title":   "Fault rules of Touchstone",
		"anyOf":   []any{file, object{typeKey: "array", "items": rule}, rule},
	}, "", "  ")
	require.NoError(t, err)

	want = append(want, '\n')

	if os.Getenv("TOUCHSTONE_UPDATE") != "" {
		require.NoError(t, os.WriteFile(schemaFile, want, 0o600))
	}

	have, err := os.ReadFile(schemaFile)
	require.NoError(t, err)
	require.Equal(t, string(want), string(have), "TOUCHSTONE_UPDATE=1 go test ./internal/lab/faults writes it")
}

// failures are the codes of failed calls.
func failures() []string {
	names := []string{}
	for each := range len(code.Code_name) - 1 {
		names = append(names, Code(each+1).String())
	}

	return names
}

type object map[string]any

// Keys and types of JSON schema.
const (
	describedAs = "description"
	typeKey     = "type"
	enumKey     = "enum"
	stringType  = "string"
	objectType  = "object"
)

// texts are the types that YAML has as a text, with a pattern or the possible words.
var texts = map[reflect.Type]object{
	reflect.TypeFor[Filter]():        {},
	reflect.TypeFor[time.Duration](): {"pattern": `^([0-9.]+(ns|us|µs|ms|s|m|h))+$`},
	reflect.TypeFor[time.Time]():     {"format": "date-time"},
	reflect.TypeFor[Code]():          {enumKey: failures()},
	reflect.TypeFor[Loss]():          {enumKey: []Loss{Hang, Reset}},
	reflect.TypeFor[View]():          {enumKey: []View{NodeView, ControllerView}},
	reflect.TypeFor[ConditionStatus](): {
		enumKey: []string{health.Degraded.String(), health.Inaccessible.String(), health.DataLoss.String()},
	},
}

func schemaOf(of reflect.Type) object {
	if text, ok := texts[of]; ok {
		made := object{typeKey: stringType}
		maps.Copy(made, text)

		return made
	}

	switch of {
	case reflect.TypeFor[Calls]():
		return object{typeKey: []string{stringType, "integer"}}
	case reflect.TypeFor[Patterns]():
		return object{"anyOf": []any{object{typeKey: stringType}, object{typeKey: "array", "items": object{typeKey: stringType}}}}
	case reflect.TypeFor[Detail]():
		return object{typeKey: objectType, "required": []string{"@type"}}
	case reflect.TypeFor[Point]():
		words := []Point{AtRequest, AtResponse}
		for _, each := range pointInfos {
			words = append(words, each.Point)
		}

		return object{typeKey: stringType, enumKey: words}
	default:
		return schemaOfKind(of)
	}
}

func schemaOfKind(of reflect.Type) object {
	switch of.Kind() {
	case reflect.Pointer:
		return schemaOf(of.Elem())
	case reflect.Slice:
		return object{typeKey: "array", "items": schemaOf(of.Elem())}
	case reflect.Map:
		return object{typeKey: objectType, "additionalProperties": schemaOf(of.Elem())}
	case reflect.Struct:
		return schemaOfStruct(of)
	case reflect.Bool:
		return object{typeKey: "boolean"}
	case reflect.String:
		return object{typeKey: stringType}
	case reflect.Float64:
		return object{typeKey: "number"}
	default:
		return object{typeKey: "integer", "minimum": 0}
	}
}

// schemaOfStruct makes each field a property; one without omitempty is required.
func schemaOfStruct(of reflect.Type) object {
	properties, required := object{}, []string{}

	for field := range of.Fields() {
		if !field.IsExported() {
			continue
		}

		name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		property := schemaOf(field.Type)
		property[describedAs] = keyTexts[of.Name()+"."+name]
		properties[name] = property

		if !strings.Contains(options, "omitempty") {
			required = append(required, name)
		}
	}

	return object{typeKey: objectType, "additionalProperties": false, "properties": properties, "required": required}
}

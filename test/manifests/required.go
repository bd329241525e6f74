package manifests

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// missing returns the fields which a type requires and a manifest lacks, as paths
// below the given one. A decoder does not report such a field, as it leaves it empty.
// The schemas of Kubernetes' API are generated from the same tags: a field is required
// unless its JSON tag has omitempty or omitzero. A pointer to a string or number, as
// the apiGroup of a dataSource, is optional without them.
func missing(path string, typ reflect.Type, value any) []string {
	if reflect.PointerTo(typ).Implements(unmarshaler) {
		return nil // a quantity, a time, a number or string
	}

	switch typ.Kind() {
	case reflect.Pointer:
		return missing(path, typ.Elem(), value)
	case reflect.Struct:
		fields, _ := value.(map[string]any)

		return missingFields(path, typ, fields)
	case reflect.Slice:
		elements, _ := value.([]any)

		var found []string
		for i, element := range elements {
			found = append(found, missing(fmt.Sprintf("%s[%d]", path, i), typ.Elem(), element)...)
		}

		return found
	case reflect.Map:
		entries, _ := value.(map[string]any)

		var found []string
		for key, entry := range entries {
			found = append(found, missing(path+"."+key, typ.Elem(), entry)...)
		}

		return found
	default:
		return nil
	}
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

func missingFields(path string, typ reflect.Type, fields map[string]any) []string {
	var found []string

	for field := range typ.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")

		switch value, there := fields[name]; {
		case name == "-" || !field.IsExported():
		case name == "": // embedded
			found = append(found, missing(path, field.Type, fields)...)
		case there:
			found = append(found, missing(path+"."+name, field.Type, value)...)
		case !strings.Contains(options, "omit") && !optional(field.Type):
			found = append(found, path+"."+name)
		}
	}

	return found
}

func optional(typ reflect.Type) bool {
	return typ.Kind() == reflect.Pointer && typ.Elem().Kind() != reflect.Struct
}

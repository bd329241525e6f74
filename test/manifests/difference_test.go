package manifests_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// differences names each place at which two objects differ: the objects
// themselves are too large to be looked through.
func differences(path string, want, is any) []string {
	switch want := want.(type) {
	case map[string]any:
		if is, ok := is.(map[string]any); ok {
			return differentFields(path, want, is)
		}
	case []any:
		if is, ok := is.([]any); ok && len(is) == len(want) {
			return differentEntries(path, want, is)
		}
	default:
		if want == is {
			return nil
		}
	}

	return []string{fmt.Sprintf("%s: want %v, is %v", path, want, is)}
}

func differentFields(path string, want, is map[string]any) []string {
	var found []string

	names := maps.Clone(want)
	maps.Copy(names, is)

	for _, name := range slices.Sorted(maps.Keys(names)) {
		found = append(found, differences(path+"."+name, want[name], is[name])...)
	}

	return found
}

func differentEntries(path string, want, is []any) []string {
	// A list that Kubernetes knows by a key has no order.
	want, is = slices.SortedStableFunc(slices.Values(want), byKey), slices.SortedStableFunc(slices.Values(is), byKey)

	var found []string
	for i := range want {
		found = append(found, differences(fmt.Sprintf("%s[%s%d]", path, key(want[i]), i), want[i], is[i])...)
	}

	return found
}

func byKey(a, b any) int { return strings.Compare(key(a), key(b)) }

// key is what Kubernetes knows an entry of a list by, or "" where the order counts.
func key(entry any) string {
	fields, _ := entry.(map[string]any)
	for _, name := range []string{"mountPath", "name"} {
		if text, ok := fields[name].(string); ok {
			return text + " "
		}
	}

	return ""
}

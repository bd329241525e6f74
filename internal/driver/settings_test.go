package driver_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/driver"
)

// The files that are made of the table of settings. TOUCHSTONE_UPDATE=1 writes them.
const (
	flagsPage   = "../../docs/flags.md"
	chartSchema = "../../deploy/helm/touchstone/values.schema.json"
	chartValues = "../../deploy/helm/touchstone/values.yaml"
)

// setByChart are the settings that the chart sets by itself.
var setByChart = []string{
	"mode", "endpoint", "driver-name", "node-id", "state-dir", "pool", "kubelet-dir", "cgroup-root",
	"kubelet-registration-dir", "http-endpoint", "kubeconfig",
}

// isMade compares a file with what the change makes of it.
func isMade(t *testing.T, path string, change func(text string) string) {
	t.Helper()

	have, err := os.ReadFile(path)
	require.NoError(t, err)

	want := change(string(have))
	if os.Getenv("TOUCHSTONE_UPDATE") != "" {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o600))
		have = []byte(want)
	}

	require.Equal(t, want, string(have), "want: TOUCHSTONE_UPDATE=1 go test ./internal/driver -run Settings has written %s", path)
}

// inParentheses is what docs/flags.md has in parentheses: default, range and the meaning of 0.
func inParentheses(s *driver.Setting) string {
	value := s.Value.String()
	if value == "" {
		return s.Zero
	}

	parts := []string{"`" + value + "`"}

	switch {
	case !s.IsNumber():
		return parts[0]
	case s.Zero == "":
		parts = append(parts, "above 0")
	default:
		parts = append(parts, "0 is "+s.Zero)
	}

	if most := limitOf(s); most > 0 {
		parts = append(parts, fmt.Sprintf("at most %d", most))
	}

	return strings.Join(parts, "; ")
}

// limitOf is the largest value that Check accepts, 0 if that is the type's.
func limitOf(s *driver.Setting) int64 {
	if s.Value.Set("1000000000000") != nil || s.Value.Check() == nil {
		return 0
	}

	_, after, _ := strings.Cut(s.Value.Check().Error(), "is more than ")
	most, _ := strconv.ParseFloat(after, 64)

	return int64(most)
}

// durations begins with examples, because Helm prints it about a value that does not match.
const durations = `30s|5m|24h|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|[uµμ]s|ms|s|m|h))+`

// schemaOf describes what the driver accepts in JSON schema.
func schemaOf(s *driver.Setting) map[string]any {
	kind, words := s.Value.Type(), strings.Split(s.Value.Type(), "|")
	schema := map[string]any{"type": "string"}

	if isList(s) && s.Pattern != "" {
		schema["pattern"] = s.Pattern
	}

	switch {
	case isList(s):
		schema = map[string]any{"type": "array", "items": schema, "minItems": least(s)}
	case len(words) > 1 && s.Zero != "":
		schema["enum"] = append([]string{""}, words...)
	case len(words) > 1:
		schema["enum"] = words
	case kind == "bool":
		schema["type"] = "boolean"
	case kind == "int":
		schema = map[string]any{"type": "integer", "minimum": least(s)}
	case kind == "float":
		schema = map[string]any{"type": "number", "exclusiveMinimum": 0}
	case kind == "size":
		schema = map[string]any{"type": []string{"integer", "string"}, "minimum": least(s), "pattern": s.Pattern}
	case kind == "duration" && s.Zero != "":
		schema = map[string]any{"type": []string{"string", "integer"}, "pattern": "^(0|" + durations + ")$", "minimum": 0, "maximum": 0}
	case kind == "duration":
		schema["pattern"] = "^(" + durations + ")$"
		schema["allOf"] = []any{map[string]any{"pattern": "[1-9]"}}
	default:
		schema["minLength"] = least(s)

		if s.Pattern != "" && s.Zero != "" {
			schema["pattern"] = "^$|" + s.Pattern
		} else if s.Pattern != "" {
			schema["pattern"] = s.Pattern
		}
	}

	if most := limitOf(s); s.IsNumber() && most > 0 {
		schema["maximum"] = most
	}

	return schema
}

// least is 0 if the zero value has a meaning, and 1 otherwise.
func least(s *driver.Setting) int {
	if s.Zero == "" {
		return 1
	}

	return 0
}

func isList(s *driver.Setting) bool {
	_, is := s.Value.(interface{ GetSlice() []string })

	return is
}

// TestSettingsAreDocumented: docs/flags.md has a paragraph of each, which begins as the table says.
func TestSettingsAreDocumented(t *testing.T) {
	t.Parallel()

	config := driver.Defaults()
	heads := map[string]string{}

	for _, each := range driver.Settings(&config) {
		heads[each.Name] = inParentheses(&each)
	}

	item := regexp.MustCompile("(?m)^- `--([a-z-]+)` \\([^)]*\\):")

	isMade(t, flagsPage, func(text string) string {
		return item.ReplaceAllStringFunc(text, func(line string) string {
			name := item.FindStringSubmatch(line)[1]
			head, ok := heads[name]
			require.True(t, ok, "want: docs/flags.md has each setting once, and nothing else, such as %s", name)
			delete(heads, name)

			return fmt.Sprintf("- `--%s` (%s):", name, head)
		})
	})
	require.Empty(t, heads, "want: docs/flags.md has a paragraph of each")
}

// ofChart are the settings that users of the chart choose, by their names.
func ofChart() []driver.Setting {
	config := driver.Defaults()
	chosen := slices.DeleteFunc(driver.Settings(&config), func(s driver.Setting) bool { return slices.Contains(setByChart, s.Name) })
	slices.SortFunc(chosen, func(a, b driver.Setting) int { return strings.Compare(a.Name, b.Name) })

	return chosen
}

// TestSettingsOfTheChart: its schema accepts what the driver does, and values.yaml lists all.
func TestSettingsOfTheChart(t *testing.T) {
	t.Parallel()

	properties := map[string]any{}
	lines := []string{}

	for _, each := range ofChart() {
		value := each.Value.String()
		schema := schemaOf(&each)
		schema["description"] = each.Help()
		properties[each.Name] = schema

		if isList(&each) {
			value = "[" + strings.ReplaceAll(value, ",", ", ") + "]"
		}

		lines = append(lines, fmt.Sprintf("#   %s: %s", each.Name, cmp.Or(value, `""`)))
		lines = append(lines, wrapped(each.Help())...)
	}

	made, err := json.MarshalIndent(properties, "      ", "  ")
	require.NoError(t, err)

	isMade(t, chartSchema, func(text string) string {
		return replaced(t, text, `(?s)"settings": \{\n +"type": "object",\n +"additionalProperties": false,\n +"properties": `+
			`(\{.*?\n      \})`, string(made))
	})
	isMade(t, chartValues, func(text string) string {
		return replaced(t, text, `(?s)\n# What can be set, and its default:\n#\n(.*?)\nsettings:`, strings.Join(lines, "\n"))
	})
}

// wrapped are the lines of a comment below a key.
func wrapped(text string) []string {
	const begin, width = "#     ", 96

	lines := []string{begin}

	for word := range strings.FieldsSeq(text) {
		if last := len(lines) - 1; len(lines[last])+len(word) < width {
			lines[last] += word + " "
		} else {
			lines[last] = strings.TrimRight(lines[last], " ")
			lines = append(lines, begin+word+" ")
		}
	}

	lines[len(lines)-1] = strings.TrimRight(lines[len(lines)-1], " ")

	return lines
}

// replaced is a text with another first group of the pattern.
func replaced(t *testing.T, text, pattern, group string) string {
	t.Helper()

	at := regexp.MustCompile(pattern).FindStringSubmatchIndex(text)
	require.NotNil(t, at, "want: a match of %s", pattern)

	return text[:at[2]] + group + text[at[3]:]
}

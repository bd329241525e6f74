package language_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// skipped lists files whose texts are not Touchstone's own.
var skipped = []string{
	"docs/glossary.md", // It contains the table.
	"test/language",    // Its tests contain the words.
	"docs/spec.md",     // It quotes the CSI spec.
	"docs/spec",
	"deploy/kubernetes/base/crds",
	"LICENSE",
}

// TestUnusedWordsAreAbsent: those of the glossary's table "Words not used", in comments, string
// literals, documents, manifests and scripts.
func TestUnusedWordsAreAbsent(t *testing.T) {
	t.Parallel()

	glossary, err := os.ReadFile(filepath.Join(root, "docs", "glossary.md"))
	require.NoError(t, err)

	words := parseWords(string(glossary))
	require.NotEmpty(t, words, "want: a table in section \"Words not used\" of docs/glossary.md")

	for _, path := range files(t) {
		if within(path, skipped) {
			continue
		}

		content, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)

		for _, each := range texts(t, path, content) {
			lower := strings.ToLower(each.content)

			for _, word := range words {
				for _, found := range word.find(each.content, lower) {
					t.Errorf("%s:%d: %q: use %s (docs/glossary.md, \"Words not used\")",
						path, each.line(found[0]), each.content[found[0]:found[1]], word.instead)
				}
			}
		}
	}
}

// word is a row's expression with the term to use for it.
type word struct {
	pattern *regexp.Regexp
	instead string
	// longest is the longest word of the expression, in lower case.
	longest string
}

// find returns the start and end of each match in a text. lower is the text in lower case: without
// the longest word there is no match, which takes a fraction of the pattern's time to see.
func (w word) find(text, lower string) [][]int {
	if !strings.Contains(lower, w.longest) {
		return nil
	}

	return w.pattern.FindAllStringIndex(text, -1)
}

var quoted = regexp.MustCompile("`([^`]+)`")

// parseWords reads the table: each quoted expression of the left column matches whole words,
// in any case, also across the end of a line.
func parseWords(glossary string) []word {
	var words []word

	_, section, _ := strings.Cut(glossary, "\n## Words not used\n")
	section, _, _ = strings.Cut(section, "\n## ")

	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}

		for _, each := range quoted.FindAllStringSubmatch(cells[1], -1) {
			fields := strings.Fields(strings.ToLower(each[1]))
			expression := strings.ReplaceAll(regexp.QuoteMeta(strings.Join(fields, " ")), " ", `\s+(?://\s+|#\s+)?`)
			words = append(words, word{
				pattern: regexp.MustCompile(`(?i)\b` + expression + `\b`),
				instead: strings.TrimSpace(cells[2]),
				longest: slices.MaxFunc(fields, func(a, b string) int { return len(a) - len(b) }),
			})
		}
	}

	return words
}

func TestParseWords(t *testing.T) {
	t.Parallel()

	words := parseWords("# G\n\n## Words not used\n\n| word | use |\n|---|---|\n" +
		"| `anew`, `look at` | again |\n\n## Next\n| `other` | none |\n")
	require.Len(t, words, 2, "want: the words of the one table are parsed")
	require.Equal(t, "again", words[0].instead)

	for text, matches := range map[string]bool{
		"Look at it": true, "a look\n// at it": true, "outlook at": false, "look\nat it": true, "looking": false,
	} {
		require.Equal(t, matches, len(words[1].find(text, strings.ToLower(text))) > 0, text)
	}
}

// within reports whether a path is one of these, or in one of these directories.
func within(path string, directories []string) bool {
	for _, each := range directories {
		if path == each || strings.HasPrefix(path, each+"/") {
			return true
		}
	}

	return false
}

func TestTextsOfGoAreFound(t *testing.T) {
	t.Parallel()

	source := "package p\n\nimport \"told\"\n\n// First.\n// Second told.\nvar a = \"told\" // Third.\n"

	var got []string

	for _, each := range texts(t, "p.go", []byte(source)) {
		got = append(got, fmt.Sprint(each.first, " ", each.content))
	}

	require.ElementsMatch(t, []string{"5 // First.\n// Second told.", "7 \"told\"", "7 // Third."}, got)
}

package language_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

var (
	// fenced and inCode are code, in which nothing is a link.
	fenced = regexp.MustCompile("(?m)^ *(```|~~~)(?s:.*?)\\n *(```|~~~) *$")
	inCode = regexp.MustCompile("`[^`\n]*`")

	// linked matches what a page links to: inline, as a definition, and in HTML.
	linked = regexp.MustCompile(`\]\(<?([^)\s>]+)|(?m:^ *\[[^\]]+\]: *<?(\S+?)>?$)|(?:href|src|srcset)="([^"]+)"`)
	// mentioned matches a page in another file: in comments, messages and manifests.
	mentioned = regexp.MustCompile(`\b(?:docs|examples)/[A-Za-z0-9_./-]*\.md(?:#[A-Za-z0-9_-]+)?`)

	heading  = regexp.MustCompile(`(?m)^#{1,6} +(.*?) *#*$`)
	explicit = regexp.MustCompile(`(?:id|name)="([^"]+)"`)
	linkText = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
)

// TestLinksResolve: every relative link in a page, and every page that another file names, is in
// the repository, and every anchor is that of a heading.
func TestLinksResolve(t *testing.T) {
	t.Parallel()

	pages := map[string]map[string]bool{}
	anchorsOf := func(path string) map[string]bool {
		if pages[path] == nil {
			pages[path] = anchors(t, path)
		}

		return pages[path]
	}
	links := 0

	for _, path := range files(t) {
		content, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)

		if filepath.Ext(path) != ".md" {
			for _, match := range mentioned.FindAllString(string(content), -1) {
				if problem := problemOf("", match, anchorsOf); problem != "" {
					t.Errorf("%s names %s: %s", path, match, problem)
				}
			}

			continue
		}

		for _, target := range targets(string(content)) {
			links++

			if problem := problemOf(path, target, anchorsOf); problem != "" {
				t.Errorf("%s: the link to %s: %s", path, target, problem)
			}
		}
	}

	require.Greater(t, links, 100, "want: the documents have links")
}

// targets returns the links of a page without those to other sites.
func targets(content string) (found []string) {
	content = fenced.ReplaceAllString(content, "")
	// Code that is the text of a link leaves the link.
	content = inCode.ReplaceAllString(content, "code")

	for _, match := range linked.FindAllStringSubmatch(content, -1) {
		target := match[1] + match[2] + match[3]
		if !strings.Contains(target, "://") && !strings.HasPrefix(target, "mailto:") {
			found = append(found, target)
		}
	}

	return found
}

// problemOf returns why a link in a page leads nowhere, "" if it leads somewhere.
func problemOf(page, target string, anchorsOf func(string) map[string]bool) string {
	file, anchor, hasAnchor := strings.Cut(target, "#")

	path := page
	if file != "" {
		path = filepath.Join(filepath.Dir(page), file)
	}

	if strings.HasPrefix(path, "..") || filepath.IsAbs(file) {
		return "it is outside of the repository"
	}

	if _, err := os.Stat(filepath.Join(root, path)); err != nil {
		return "no such file"
	}

	if hasAnchor && filepath.Ext(path) == ".md" && !anchorsOf(path)[anchor] {
		return "no such heading"
	}

	return ""
}

// anchors returns the anchors of a page, as GitHub makes them of its headings.
func anchors(t *testing.T, path string) map[string]bool {
	t.Helper()

	content, err := os.ReadFile(filepath.Join(root, path))
	require.NoError(t, err)

	text, all := fenced.ReplaceAllString(string(content), ""), map[string]bool{}

	for _, match := range explicit.FindAllStringSubmatch(text, -1) {
		all[match[1]] = true
	}

	for _, match := range heading.FindAllStringSubmatch(text, -1) {
		name := anchor(match[1])
		for i := 1; all[name]; i++ {
			name = fmt.Sprintf("%s-%d", anchor(match[1]), i)
		}

		all[name] = true
	}

	return all
}

func anchor(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
			return unicode.ToLower(r)
		default:
			return -1
		}
	}, linkText.ReplaceAllString(title, "$1"))
}

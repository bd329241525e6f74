// Package shorten keeps texts within the limits of the spec.
package shorten

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// MaxBytes is the spec's limit for a string, in requests and responses (CSI v1.13, Size
// Limits).
const MaxBytes = 128

// Ellipsis stands for what was removed from a truncated text.
const Ellipsis = "…"

// shortestPath is the length to which Text shortens a path at most: with Kubernetes' paths the
// last half of the UID in a volume's name is left.
const shortestPath = 32

// pathInText matches a path in a text.
var pathInText = regexp.MustCompile(` /[^ ;]+`)

// Text truncates text to limit bytes at rune boundaries, with an ellipsis: first the beginnings
// of paths, whose ends identify pod and volume, and then the end.
func Text(text string, limit int) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) > limit {
		text = shortenPaths(text, len(text)-limit)
	}

	return End(text, limit)
}

// End truncates text to limit bytes at a rune boundary, with an ellipsis as its end.
func End(text string, limit int) string {
	if len(text) <= limit {
		return text
	}

	// Without the first bytes of a rune at the end.
	return strings.ToValidUTF8(text[:limit-len(Ellipsis)], "") + Ellipsis
}

// shortenPaths removes excess bytes from the beginnings of the paths in a text, or what it can.
func shortenPaths(text string, excess int) string {
	paths := len(pathInText.FindAllStringIndex(text, -1))

	return pathInText.ReplaceAllStringFunc(text, func(match string) string {
		path := match[1:]

		start := min(excess/paths+1+len(Ellipsis), len(path)-shortestPath)
		for start > 0 && start < len(path) && !utf8.RuneStart(path[start]) {
			start++
		}

		if start <= len(Ellipsis) {
			return match
		}

		return " " + Ellipsis + path[start:]
	})
}

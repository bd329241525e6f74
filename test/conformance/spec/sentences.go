package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
)

// sentence is one that contains a keyword of RFC 2119 that binds, or a row of an error table.
type sentence struct {
	line          int
	section, text string
	// hash identifies the sentence in its section, whatever its line.
	hash string
}

var (
	binds     = regexp.MustCompile(`\b(MUST|SHALL|REQUIRED)\b`)
	errorRow  = regexp.MustCompile(`\| \d+ [A-Z_]+ \|`)
	comment   = regexp.MustCompile(`^//\s?(.*)`)
	endOfText = regexp.MustCompile("[.;:]\\s+[A-Z`(*]")
)

// normative returns the sentences of the spec's text that bind, in its order.
func normative(text string) []sentence {
	var (
		found []sentence
		seen  = map[string]int{}
	)

	for _, p := range paragraphs(text) {
		parts := []string{p.text}
		if !strings.HasPrefix(p.text, "|") {
			parts = split(p.text)
		}

		for _, part := range parts {
			if !binds.MatchString(part) && !errorRow.MatchString(part) {
				continue
			}

			key := p.section + "\n" + part
			seen[key]++
			sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%d", key, seen[key]))

			found = append(found, sentence{p.line, p.section, part, hex.EncodeToString(sum[:5])})
		}
	}

	return found
}

// split splits a paragraph where a sentence or a clause ends.
func split(text string) []string {
	var parts []string

	for {
		at := endOfText.FindStringIndex(text)
		if at == nil {
			return append(parts, text)
		}

		parts = append(parts, text[:at[0]+1])
		text = strings.TrimSpace(text[at[0]+1:])
	}
}

// paragraph is a line, a list's item, a table's row, or consecutive lines of a comment in the
// protobuf definitions.
type paragraph struct {
	line          int
	section, text string
}

func paragraphs(text string) []paragraph {
	var (
		found   []paragraph
		current paragraph
		section string
		inCode  bool
	)

	flush := func() {
		if current.text != "" {
			found = append(found, current)
		}

		current = paragraph{}
	}

	add := func(number int, text string) {
		if current.text == "" {
			current = paragraph{number, section, text}
		} else {
			current.text += " " + text
		}
	}

	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)

		switch {
		case strings.HasPrefix(line, "```"):
			flush()

			inCode = !inCode
		case inCode:
			if text := comment.FindStringSubmatch(trimmed); len(text) > 1 && strings.TrimSpace(text[1]) != "" {
				add(i+1, strings.TrimSpace(text[1]))
			} else {
				flush()
			}
		case strings.HasPrefix(line, "#"):
			flush()

			section = strings.ReplaceAll(strings.Trim(trimmed, "# `"), "`", "")
		case trimmed == "":
			flush()
		default:
			// Outside of comments each line is a paragraph.
			flush()
			add(i+1, trimmed)
		}
	}

	flush()

	return found
}

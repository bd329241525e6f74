package filesystem

import (
	"fmt"
	"slices"
	"strings"
)

// grammar lists the options that a user may give to a mkfs. A list of what is
// allowed rather than of what is not: a mkfs can read and write other files
// (-d, -z), only pretend (-n), or take a stray word for the device.
type grammar struct {
	tool string
	// plain options have no value; valued ones do, in the same word or the next.
	plain, valued []string
	// refused are the comma-separated suboptions that name other places, or the
	// size, which is the volume's.
	refused map[string][]string
}

type option struct{ name, value string }

// CheckOptions refuses with ErrOption what Make of the named filesystem would
// refuse, so that a user hears of it before the volume is made. Error:
// ErrUnknown.
func CheckOptions(name string, words []string) error {
	grammars := map[string]func() grammar{Ext4: ext4Grammar, XFS: xfsGrammar, Btrfs: btrfsGrammar}

	of, known := grammars[name]
	if !known {
		return fmt.Errorf("%w %q; known are %v", ErrUnknown, name, Names())
	}

	_, err := of().parse(words)

	return err
}

// parse splits the words of the user into options, or returns ErrOption. No
// word of its result can be mistaken for the device.
func (g grammar) parse(words []string) ([]option, error) {
	var options []option

	for i := 0; i < len(words); i++ {
		parsed, hasValue, err := g.split(words[i])
		if err != nil {
			return nil, err
		}

		if slices.Contains(g.valued, parsed.name) && !hasValue {
			i++
			if i == len(words) {
				return nil, fmt.Errorf("%w: %s of %s lacks its value", ErrOption, parsed.name, g.tool)
			}

			parsed.value = words[i]
		}

		if err := g.admit(parsed); err != nil {
			return nil, err
		}

		options = append(options, parsed)
	}

	return options, nil
}

// split takes "-Xvalue", "--name=value", "-X" and "--name" apart.
func (g grammar) split(word string) (parsed option, hasValue bool, err error) {
	name, value := word, ""

	if strings.HasPrefix(word, "--") {
		name, value, hasValue = strings.Cut(word, "=")
	} else if len(word) > len("-X") && word[0] == '-' {
		name, value, hasValue = word[:len("-X")], word[len("-X"):], true
	}

	valued := slices.Contains(g.valued, name)
	if !valued && (hasValue || !slices.Contains(g.plain, name)) {
		return option{}, false, fmt.Errorf("%w: %q of %s; allowed are %s",
			ErrOption, word, g.tool, strings.Join(slices.Concat(g.plain, g.valued), " "))
	}

	return option{name: name, value: value}, hasValue, nil
}

func (g grammar) admit(o option) error {
	if strings.ContainsAny(o.value, "\x00\n") {
		return fmt.Errorf("%w: the value of %s of %s holds a control character", ErrOption, o.name, g.tool)
	}

	for suboption := range strings.SplitSeq(o.value, ",") {
		name, _, _ := strings.Cut(strings.TrimSpace(suboption), "=")
		if slices.Contains(g.refused[o.name], name) {
			return fmt.Errorf("%w: %s %s of %s; Touchstone decides that", ErrOption, o.name, name, g.tool)
		}
	}

	return nil
}

func words(options []option) []string {
	var result []string

	for _, o := range options {
		switch {
		case o.value == "":
			result = append(result, o.name)
		case strings.HasPrefix(o.name, "--"):
			result = append(result, o.name+"="+o.value)
		default:
			result = append(result, o.name, o.value)
		}
	}

	return result
}

package filesystem

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// mkfsGrammar lists the options that a user may give to a mkfs. It is a list of what is allowed,
// since a mkfs can read and write other files (-d, -z), only pretend (-n), take a stray word for
// the device, or set what the kernel does with the filesystem later (-e panic). See
// docs/decisions/0026-mkfs-and-mount-options.md.
type mkfsGrammar struct {
	tool    string
	options map[string]optionRule
	// refused has the reasons for which users may not give what they would expect to be allowed: of
	// options and of their values.
	refused map[string]string
}

// optionRule says which values an option takes.
type optionRule struct {
	// takes describes the values in messages; an option without a value has "".
	valueSyntax string
	isValid     func(value string) bool
}

type option struct{ name, value string }

var withoutValueRule = optionRule{}

// numberRule is a count or a size, with the unit that the tools know.
var numberRule = optionRule{valueSyntax: "NUMBER", isValid: func(value string) bool {
	digits := strings.TrimRight(value, "bBsSkKmMgG")
	_, err := strconv.ParseUint(digits, 10, 64)

	return err == nil && len(value)-len(digits) <= 1
}}

var percentRule = optionRule{valueSyntax: "PERCENT", isValid: func(value string) bool {
	const most = 50

	part, err := strconv.ParseFloat(value, 64)

	return err == nil && part >= 0 && part <= most
}}

var labelRule = optionRule{valueSyntax: "LABEL", isValid: func(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return !unicode.IsPrint(r) })
}}

// ownerRule is a user's and a group's number.
var ownerRule = optionRule{valueSyntax: "UID:GID", isValid: func(value string) bool {
	user, group, two := strings.Cut(value, ":")
	_, errUser := strconv.ParseUint(user, 10, 32)
	_, errGroup := strconv.ParseUint(group, 10, 32)

	return two && errUser == nil && errGroup == nil
}}

func oneOf(words ...string) optionRule {
	return optionRule{valueSyntax: strings.Join(words, "|"), isValid: func(value string) bool { return slices.Contains(words, value) }}
}

// features are names with commas between, each to be set or, with ^, not.
func features(names ...string) optionRule {
	return optionRule{valueSyntax: "[^]" + strings.Join(names, "|"), isValid: func(value string) bool {
		for name := range strings.SplitSeq(value, ",") {
			if !slices.Contains(names, strings.TrimPrefix(name, "^")) {
				return false
			}
		}

		return true
	}}
}

// suboptions are names with commas between, most with a value of their own.
func suboptions(rules map[string]optionRule) optionRule {
	return optionRule{valueSyntax: describeRules(rules, "="), isValid: func(value string) bool {
		for each := range strings.SplitSeq(value, ",") {
			name, given, hasValue := strings.Cut(each, "=")

			known, ok := rules[name]
			if !ok || hasValue != (known.isValid != nil) || hasValue && !known.isValid(given) {
				return false
			}
		}

		return true
	}}
}

// sameRule gives several names one rule, or reason.
func sameRule[Rule any](of Rule, names ...string) map[string]Rule {
	rules := make(map[string]Rule, len(names))
	for _, name := range names {
		rules[name] = of
	}

	return rules
}

// mergeRules returns all the rules.
func mergeRules(parts ...map[string]optionRule) map[string]optionRule {
	all := map[string]optionRule{}
	for _, part := range parts {
		maps.Copy(all, part)
	}

	return all
}

// describeRules lists the rules for a message.
func describeRules(rules map[string]optionRule, between string) string {
	texts := make([]string, 0, len(rules))

	for _, name := range slices.Sorted(maps.Keys(rules)) {
		if takes := rules[name].valueSyntax; takes != "" {
			name += between + takes
		}

		texts = append(texts, name)
	}

	return strings.Join(texts, ",")
}

// CheckOptions refuses with ErrOption what Make of the named filesystem would
// refuse, so that a user hears of it before the volume is made. Error:
// ErrUnknown.
func CheckOptions(name string, words []string) error {
	row, known := typeByName(name)
	if !known {
		return fmt.Errorf("%w %q; known are %v", ErrUnknown, name, Names())
	}

	_, err := row.mkfsOptions.parse(words)

	return err
}

// parse splits the words of the user into options, or returns ErrOption. No
// word of its result can be mistaken for the device.
func (g mkfsGrammar) parse(words []string) ([]option, error) {
	var options []option

	for i := 0; i < len(words); i++ {
		parsed, hasValue, err := g.split(words[i])
		if err != nil {
			return nil, err
		}

		known := g.options[parsed.name]

		if known.isValid != nil && !hasValue {
			i++
			if i == len(words) {
				return nil, fmt.Errorf("%w: %s of %s lacks its value", ErrOption, parsed.name, g.tool)
			}

			parsed.value = words[i]
		}

		if known.isValid != nil && !known.isValid(parsed.value) {
			return nil, fmt.Errorf("%w: %s %q of %s%s; allowed is %s %s",
				ErrOption, parsed.name, parsed.value, g.tool, g.reasonFor(parsed.value), parsed.name, known.valueSyntax)
		}

		options = append(options, parsed)
	}

	return options, nil
}

// split takes "-Xvalue", "--name=value", "-X" and "--name" apart.
func (g mkfsGrammar) split(word string) (parsed option, hasValue bool, err error) {
	name, value := word, ""

	if strings.HasPrefix(word, "--") {
		name, value, hasValue = strings.Cut(word, "=")
	} else if len(word) > len("-X") && word[0] == '-' {
		name, value, hasValue = word[:len("-X")], word[len("-X"):], true
	}

	known, ok := g.options[name]
	if !ok || hasValue && known.isValid == nil {
		return option{}, false, fmt.Errorf("%w: %q of %s%s; allowed are %s",
			ErrOption, word, g.tool, g.reasonFor(name), describeRules(g.options, " "))
	}

	return option{name: name, value: value}, hasValue, nil
}

// reasonFor returns ": REASON" if one of the values, which have commas between them, is refused for one.
func (g mkfsGrammar) reasonFor(values string) string {
	for value := range strings.SplitSeq(values, ",") {
		if reason, ok := g.refused[value]; ok {
			return ": " + reason
		}
	}

	return ""
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

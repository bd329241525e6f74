package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryRequirementHasARow compares the rows with the spec, the tests and the page.
func TestEveryRequirementHasARow(t *testing.T) {
	t.Parallel()

	problems, err := run("../../..", false, "")
	require.NoError(t, err)
	require.Empty(t, problems, "want: docs/spec.md has a row for each requirement")
}

const sample = "# Part\n\nA plugin MUST a. It MAY b.\nThe plugin SHALL c.\n\n" +
	"```protobuf\n// This field is\n// REQUIRED. Not this.\nstring x = 1;\n```\n" +
	"| Gone | 5 NOT_FOUND | text |\n| None | text |\n"

func TestNormativeSentencesAreFound(t *testing.T) {
	t.Parallel()

	found := normative(sample)
	texts := make([]string, 0, len(found))

	for _, each := range found {
		require.Equal(t, "Part", each.section)
		texts = append(texts, each.text)
	}

	require.Equal(t, []string{"A plugin MUST a.", "The plugin SHALL c.", "This field is REQUIRED.", "| Gone | 5 NOT_FOUND | text |"}, texts)
	require.Equal(t, []int{3, 4, 7, 11}, []int{found[0].line, found[1].line, found[2].line, found[3].line})
}

func TestCheckFindsFaults(t *testing.T) {
	t.Parallel()

	sound := func() []row {
		rows := make([]row, 0, 4)
		for i, s := range normative(sample) {
			rows = append(rows, row{
				id: string(rune('a' + i)), line: s.line, hash: s.hash, section: s.section, statement: s.text, verdict: holds,
				shown: []string{"Probe | plain | OK"},
			})
		}

		return rows
	}

	for name, test := range map[string]struct {
		change func(rows []row) []row
		want   string
	}{
		"none":                {func(rows []row) []row { return rows }, ""},
		"row missing":         {func(rows []row) []row { return rows[1:] }, "line 3 of the spec has no row"},
		"sentence gone":       {func(rows []row) []row { rows[0].hash = "x"; return rows }, "the spec has no such sentence"},
		"line moved":          {func(rows []row) []row { rows[0].line++; return rows }, "is not what line 3"},
		"no observation":      {func(rows []row) []row { rows[0].shown = nil; return rows }, "no observation shows it"},
		"a test's name":       {func(rows []row) []row { rows[0].shown[0] = "A test"; return rows }, `"A test" is no observation`},
		"an error, plain":     {func(rows []row) []row { rows[0].shown[0] = "Probe | plain | Internal after a message"; return rows }, "what the error is for"},
		"no reason":           {func(rows []row) []row { rows[0].verdict, rows[0].shown = reasoned, nil; return rows }, "no reason is given"},
		"a reason":            {func(rows []row) []row { rows[0].verdict, rows[0].shown[0] = reasoned, "see"; return rows }, ""},
		"unknown verdict":     {func(rows []row) []row { rows[0].verdict = "maybe"; return rows }, `unknown verdict "maybe"`},
		"unknown decision":    {func(rows []row) []row { rows[0].decision = "9"; return rows }, "there is no decision 9"},
		"deviation, no why":   {func(rows []row) []row { rows[0].verdict = deviates; return rows }, "no decision says why"},
		"two with one id":     {func(rows []row) []row { rows[0].id = rows[1].id; return rows }, "there are two of it"},
		"deviation, decision": {func(rows []row) []row { rows[0].verdict, rows[0].decision = deviates, "1"; return rows }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			problems := check(test.change(sound()), normative(sample), func(n string) bool { return n == "1" })
			if test.want == "" {
				require.Empty(t, problems, "want: the sound rows have no fault")
			} else {
				require.NotEmpty(t, problems, "want: the fault is found")
				require.Contains(t, strings.Join(problems, "\n"), test.want)
			}
		})
	}

	require.Equal(t, []string{"a: not observed: Probe | plain | OK"}, notObserved(sound()[:1], observed("Probe | plain | Internal")))
	require.Empty(t, notObserved(sound(), observed("Probe | plain | OK")), "want: an observed row is not reported")
	require.Empty(t, notObserved(sound(), observed("Probe | one + plain + other | OK")), "a call has several conditions")

	two := sound()[:1]
	two[0].shown = []string{"Probe | one + other | OK"}

	require.Empty(t, notObserved(two, observed("Probe | other + plain + one | OK")), "want: the conditions match in any order")
	require.NotEmpty(t, notObserved(two, observed("Probe | one | OK", "Probe | other | OK")), "of two calls")
}

func observed(texts ...string) observations {
	made := observations{}
	for _, each := range texts {
		made.add(each)
	}

	return made
}

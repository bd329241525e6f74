package filesystem

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestValuesOfOptionsAreValidUpToTheirLimits(t *testing.T) {
	t.Parallel()

	nested := suboptions(map[string]optionRule{"size": numberRule, "noalign": withoutValueRule})

	for name, test := range map[string]struct {
		rule           optionRule
		valid, invalid []string
	}{
		"number": {
			numberRule,
			[]string{"0", "1", "18446744073709551615", "4k", "4K", "4b", "4B", "4s", "4S", "4m", "4M", "4g", "4G"},
			[]string{"", "k", "-1", "+1", "1.5", "4kk", "4kB", "4t", "18446744073709551616", "k4", "4 "},
		},
		"percent": {percentRule, []string{"0", "0.5", "49.9", "50", "5e1"}, []string{"", "-0.1", "50.1", "51", "x", "NaN"}},
		"label":   {labelRule, []string{"", "a", "a b", "ä"}, []string{"\n", "a\x00", "a\x7f", "\t"}},
		"owner":   {ownerRule, []string{"0:0", "1000:4294967295"}, []string{"", "0", ":", "0:", ":0", "0:4294967296", "4294967296:0", "0:0:0", "-1:0", "a:b"}},
		"one of":  {oneOf("a", "b"), []string{"a", "b"}, []string{"", "c", "ab", "a,b"}},
		"features": {
			features("a", "b"), []string{"a", "^a", "a,^b", "a,a"}, []string{"", "c", "a,c", "c,a", "^^a", "a,", ",a", "a^"},
		},
		"options of an option": {
			nested,
			[]string{"size=4k", "noalign", "noalign,size=1", "size=1,size=2"},
			[]string{"", "size", "size=", "size=x", "noalign=", "noalign=1", "other", "other=1", "noalign,other", "other,noalign", "noalign,size", "size=1,"},
		},
	} {
		for _, value := range test.valid {
			require.True(t, test.rule.isValid(value), "want: %q is a valid %s", value, name)
		}

		for _, value := range test.invalid {
			require.False(t, test.rule.isValid(value), "want: %q is no valid %s", value, name)
		}
	}

	require.Equal(t, "noalign,size=NUMBER", nested.valueSyntax, "what a message says of the values")
	require.Nil(t, withoutValueRule.isValid, "want: an option without a value takes none")
}

// TestWordsOfOptions are taken apart, and put together as mkfs takes them.
func TestWordsOfOptions(t *testing.T) {
	t.Parallel()

	grammar := mkfsGrammar{
		tool: "mkfs.test", options: map[string]optionRule{
			"-L": labelRule, "--label": labelRule, "-b": numberRule, "-j": withoutValueRule, "--mixed": withoutValueRule,
		},
		refused: map[string]string{"-C": "it does not grow", "clusters": "nor do these"},
	}

	for name, test := range map[string]struct {
		words   []string
		options []option
		made    []string
	}{
		"none":                      {},
		"a value apart":             {[]string{"-b", "4k"}, []option{{"-b", "4k"}}, []string{"-b", "4k"}},
		"a value in the word":       {[]string{"-b4k"}, []option{{"-b", "4k"}}, []string{"-b", "4k"}},
		"a long name":               {[]string{"--label=a b"}, []option{{"--label", "a b"}}, []string{"--label=a b"}},
		"a long name, apart":        {[]string{"--label", "a"}, []option{{"--label", "a"}}, []string{"--label=a"}},
		"no value":                  {[]string{"-j", "--mixed"}, []option{{"-j", ""}, {"--mixed", ""}}, []string{"-j", "--mixed"}},
		"several":                   {[]string{"-j", "-L", "x", "-b1"}, []option{{"-j", ""}, {"-L", "x"}, {"-b", "1"}}, []string{"-j", "-L", "x", "-b", "1"}},
		"a value that is an option": {[]string{"-L", "-j"}, []option{{"-L", "-j"}}, []string{"-L", "-j"}},
		"an equals sign":            {[]string{"--label=a=b"}, []option{{"--label", "a=b"}}, []string{"--label=a=b"}},
	} {
		options, err := grammar.parse(test.words)
		require.NoError(t, err, name)
		require.Equal(t, test.options, options, "the options: %s", name)
		require.Equal(t, test.made, words(options), "the words: %s", name)
	}

	const allowed = "; allowed are --label LABEL,--mixed,-L LABEL,-b NUMBER,-j"

	for want, given := range map[string][]string{
		`mkfs option is not allowed: -b of mkfs.test lacks its value`:                                  {"-j", "-b"},
		`mkfs option is not allowed: -b "x" of mkfs.test; allowed is -b NUMBER`:                        {"-b", "x"},
		`mkfs option is not allowed: -b "clusters" of mkfs.test: nor do these; allowed is -b NUMBER`:   {"-bclusters"},
		`mkfs option is not allowed: -b "1,clusters" of mkfs.test: nor do these; allowed is -b NUMBER`: {"-b", "1,clusters"},
		`mkfs option is not allowed: "-C1" of mkfs.test: it does not grow` + allowed:                   {"-C1"},
		`mkfs option is not allowed: "-x" of mkfs.test` + allowed:                                      {"-x"},
		`mkfs option is not allowed: "" of mkfs.test` + allowed:                                        {""},
		`mkfs option is not allowed: "-" of mkfs.test` + allowed:                                       {"-"},
		`mkfs option is not allowed: "--" of mkfs.test` + allowed:                                      {"--"},
		`mkfs option is not allowed: "jx" of mkfs.test` + allowed:                                      {"jx"},
		`mkfs option is not allowed: "/dev/sda" of mkfs.test` + allowed:                                {"-j", "/dev/sda"},
		`mkfs option is not allowed: "-jx" of mkfs.test` + allowed:                                     {"-jx"},
		`mkfs option is not allowed: "--mixed=1" of mkfs.test` + allowed:                               {"--mixed=1"},
		`mkfs option is not allowed: "--mix" of mkfs.test` + allowed:                                   {"--mix"},
	} {
		options, err := grammar.parse(given)
		require.EqualError(t, err, want)
		require.ErrorIs(t, err, ErrOption)
		require.Empty(t, options, "the options of %q", given)
	}

	require.ErrorIs(t, CheckOptions("ext3", nil), ErrUnknown)
	require.NoError(t, CheckOptions(Ext4, []string{"-m", "1"}))
	require.ErrorIs(t, CheckOptions(Ext4, []string{"-m", "51"}), ErrOption)
}

package setting_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/driver/setting"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

var errLong = errors.New("is too long")

func short(text string) error {
	if len(text) > 3 {
		return errLong
	}

	return nil
}

// values are one value of each kind, and the same without its check where it has one.
type values struct {
	text, word       string
	on, off          bool
	number           int
	ratio            float64
	period           time.Duration
	size             int64
	list, any        []string
	pairs, unchecked map[string]string
	sizes            map[string]int64
}

func (v *values) all() map[string]setting.Value {
	return map[string]setting.Value{
		"text": setting.Text(&v.text, "abc", short), "word": setting.Word(&v.word, "a", "a", "b", ""),
		"on": setting.Bool(&v.on, true, false), "off": setting.Bool(&v.off, true, true),
		"number": setting.Int(&v.number, 2, 9), "ratio": setting.Float(&v.ratio, 1, 10),
		"period": setting.Duration(&v.period, time.Minute), "size": setting.Size(&v.size, 0),
		"list": setting.List(&v.list, []string{"x", "y"}, short), "any": setting.List(&v.any, nil, nil),
		"pairs":     setting.Map(&v.pairs, map[string]string{"k": "v"}, "KEY=VALUE", func(_, value string) error { return short(value) }),
		"unchecked": setting.Map(&v.unchecked, nil, "KEY=VALUE", nil), "sizes": setting.Sizes(&v.sizes),
	}
}

// TestValuesAreParsed has the text that a value has after Set, or the errors of Set and of Check.
func TestValuesAreParsed(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct{ of, text, want, refused, unusable string }{
		"text":                  {of: "text", text: "a", want: "a"},
		"no text":               {of: "text", text: ""},
		"bad text":              {of: "text", text: "abcd", want: "abcd", unusable: "is too long"},
		"word":                  {of: "word", text: "b", want: "b"},
		"no word":               {of: "word", text: ""},
		"bad word":              {of: "word", text: "c", want: "c", unusable: `"c" is not one of a, b`},
		"bool":                  {of: "on", text: "0", want: "false"},
		"inverted bool":         {of: "off", text: "false", want: "false"},
		"no bool":               {of: "off", text: "no", refused: `"no" is not true or false`},
		"largest number":        {of: "number", text: "9", want: "9"},
		"number above":          {of: "number", text: "10", want: "10", unusable: "10 is more than 9"},
		"negative number":       {of: "number", text: "-0x1", want: "-1", unusable: "-1 cannot be negative"},
		"no whole number":       {of: "number", text: "1.5", refused: "is not a whole number"},
		"ratio":                 {of: "ratio", text: "1.5", want: "1.5"},
		"ratio above":           {of: "ratio", text: "10.5", want: "10.5", unusable: "10.5 is more than 10"},
		"ratio that is no such": {of: "ratio", text: "NaN", want: "NaN", unusable: "NaN is more than 10"},
		"no number":             {of: "ratio", text: "x", refused: "is not a number"},
		"period":                {of: "period", text: "90s", want: "1m30s"},
		"period of no unit":     {of: "period", text: "90", refused: `"90" is not a duration such as 30s, 5m or 24h`},
		"negative period":       {of: "period", text: "-1s", want: "-1s", unusable: "-1s cannot be negative"},
		"size":                  {of: "size", text: "10GiB", want: "10737418240"},
		"no size":               {of: "size", text: "10Gb", refused: `"10Gb" is not a size such as 10Gi, 10GiB, 10G or 4096`},
		"negative size":         {of: "size", text: "-1", refused: `"-1" is not a size`},
		"list":                  {of: "list", text: `a,"b"`, want: "a,b"},
		"empty list":            {of: "list", text: ""},
		"list of bad":           {of: "list", text: "a,bcde", want: "a,bcde", unusable: "is too long"},
		"any list":              {of: "any", text: "bcde", want: "bcde"},
		"list of lines":         {of: "list", text: "a\nb", refused: "several lines"},
		"list that is no CSV":   {of: "list", text: `"`, refused: `"\""`},
		"pairs":                 {of: "pairs", text: "b=1,a=2", want: "a=2,b=1"},
		"pair of bad":           {of: "pairs", text: "a=1234", want: "a=1234", unusable: "is too long"},
		"unchecked pair":        {of: "unchecked", text: "a=1234", want: "a=1234"},
		"no pair":               {of: "pairs", text: "a", refused: `"a" is not KEY=VALUE`},
		"pair without a name":   {of: "pairs", text: "=a", refused: `"=a" is not KEY=VALUE`},
		"pair without a value":  {of: "pairs", text: "a=", refused: `"a=" is not KEY=VALUE`},
		"pair twice":            {of: "pairs", text: "a=1,a=2", refused: `"a" twice`},
		"sizes":                 {of: "sizes", text: "a=1Ki", want: "a=1024"},
		"sizes of none":         {of: "sizes", text: "a=b", refused: `"b" is not a size`},
		"sizes below 0":         {of: "sizes", text: "a=-1", refused: `"-1" is not a size`},
	} {
		value := (&values{}).all()[test.of]
		before := value.String()

		err := value.Set(test.text)
		if test.refused != "" {
			errtext.Require(t, err, test.refused, name)
			require.Equal(t, before, value.String(), "want: %s keeps the value", name)

			continue
		}

		require.NoError(t, err, name)
		require.Equal(t, test.want, value.String(), name)

		if test.unusable != "" {
			errtext.Require(t, value.Check(), test.unusable, name)
		} else {
			require.NoError(t, value.Check(), name)
		}
	}
}

// TestDefaultsAreReset, and each but a boolean has a zero value.
func TestDefaultsAreReset(t *testing.T) {
	t.Parallel()

	values := &values{}

	for name, value := range values.all() {
		require.Equal(t, name != "on" && name != "off", value.IsZero(), name)
		value.Reset()
		require.NoError(t, value.Check(), name)
	}

	require.Equal(t, "abc", values.text)
	require.Equal(t, "a", values.word)
	require.True(t, values.on, "want: the field has the default")
	require.False(t, values.off, "want: the field has the opposite of the default")
	require.Equal(t, 2, values.number, "want: the number has its default")
	require.Equal(t, time.Minute, values.period)
	require.Equal(t, []string{"x", "y"}, values.list)
	require.Equal(t, map[string]string{"k": "v"}, values.pairs)
}

// TestRepeatedValuesAdd to each other, and the first replaces the default.
func TestRepeatedValuesAdd(t *testing.T) {
	t.Parallel()

	for name, want := range map[string]string{"list": "a,b,c", "pairs": "a=1,b=2,c=3"} {
		values := &values{}
		value := values.all()[name]
		value.Reset()

		texts := map[string][]string{"list": {"a", "b", "c"}, "pairs": {"a=1", "b=2", "c=3"}}[name]
		require.NoError(t, value.Set(texts[0]))
		require.NoError(t, value.Set(texts[1]))

		slice, ok := value.(interface {
			Append(text string) error
			Replace(texts []string) error
			GetSlice() []string
		})
		require.True(t, ok, "want: %s is a pflag.SliceValue", name)
		require.NoError(t, slice.Append(texts[2]))
		require.Equal(t, want, value.String())
		require.Equal(t, texts, slice.GetSlice())
		require.NoError(t, slice.Replace(texts[:1]))
		require.Equal(t, texts[0], value.String())
	}
}

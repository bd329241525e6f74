package main

import (
	"go/format"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const operated = `package p

import "os"

type box struct{ n int }

func (b *box) put(f *os.File, n int) (int, error) {
	if n < 1 && b.n == 0 {
		return 0, errEmpty
	}

	b.n = n
	b.log(n)

	b.first = 1
	b.next = 2
	b.last = b.next

	err := f.Sync()
	if err != nil {
		return 0, fmt.Errorf("sync %d: %w", n+1, err)
	}

	if n > 5 {
		b.log.Warn("large", "n", n)
	}

	return b.n + 1, nil
}
`

func TestOperatorsChangeOneExpressionEach(t *testing.T) {
	t.Parallel()

	found, err := mutantsOf("pkg/p", "pkg/p/p.go", operated)
	require.NoError(t, err)

	got := map[string]string{}

	for _, m := range found {
		changed := operated[:m.start] + m.new + operated[m.start+len(m.old):]
		_, err := format.Source([]byte(changed))
		require.NoErrorf(t, err, "the file with %s", m.name)

		got[m.name] = m.new
	}

	require.Equal(t, map[string]string{
		"pkg/p box.put: negate: n < 1 && b.n == 0":                         "!(n < 1 && b.n == 0)",
		"pkg/p box.put: never: n < 1 && b.n == 0":                          "false && (n < 1 && b.n == 0)",
		"pkg/p box.put: replace &&: n < 1 && b.n == 0":                     "||",
		"pkg/p box.put: replace <: n < 1":                                  "<=",
		"pkg/p box.put: replace ==: b.n == 0":                              "!=",
		"pkg/p box.put: drop error: errEmpty":                              "func() error { _ = errEmpty; return nil }()",
		"pkg/p box.put: drop: b.n = n":                                     "",
		"pkg/p box.put: drop: b.log(n)":                                    "",
		"pkg/p box.put: swap: b.n = n":                                     "b.log(n)\n\tb.n = n",
		"pkg/p box.put: drop: b.first = 1":                                 "",
		"pkg/p box.put: drop: b.next = 2":                                  "",
		"pkg/p box.put: drop: b.last = b.next":                             "",
		"pkg/p box.put: swap: b.log(n)":                                    "b.first = 1\n\n\tb.log(n)",
		"pkg/p box.put: swap: b.next = 2":                                  "b.last = b.next\n\tb.next = 2", //nolint:dupword // code
		"pkg/p box.put: drop sync: f.Sync()":                               "error(nil)",
		"pkg/p box.put: never: err != nil":                                 "false && (err != nil)",
		"pkg/p box.put: replace !=: err != nil":                            "==",
		"pkg/p box.put: drop error: fmt.Errorf(\"sync %d: %w\", n+1, err)": "func() error { _ = fmt.Errorf(\"sync %d: %w\", n+1, err); return nil }()",
		"pkg/p box.put: replace +: b.n + 1":                                "-",
	}, got)
}

func TestADrawIsTheSameForASeed(t *testing.T) {
	t.Parallel()

	all := make([]mutant, 0, 100)
	for i := range 100 {
		all = append(all, mutant{name: string(rune('0' + i)), file: "pkg/state/a.go"})
	}

	every := func(string) bool { return true }
	first, again, other := draw(all, 10, 1, every), draw(all, 10, 1, every), draw(all, 10, 2, every)
	require.Equal(t, first, again, "two draws with one seed")
	require.NotEqual(t, first, other, "draws with two seeds")
	require.Empty(t, draw(all, 10, 1, func(pkg string) bool { return pkg != "pkg/state" }), "a package that is not asked for")
	require.Len(t, draw(all, 1000, 1, every), 100, "a draw of more than there are")
}

// TestEquivalentMutantsExist finds names in the list that no mutant has any more.
func TestEquivalentMutantsExist(t *testing.T) {
	t.Parallel()

	root, err := moduleRoot()
	require.NoError(t, err)

	all, err := operatorMutants(t.Context(), root)
	require.NoError(t, err)

	names := map[string]bool{}
	for _, m := range all {
		names[m.name] = true
	}

	for name := range equivalent {
		require.True(t, names[name], "a mutant is listed as equivalent that there is not: %s", name)
	}
}

// TestRegistrationsAreNotSwapped: only what stands beside another effect is.
func TestRegistrationsAreNotSwapped(t *testing.T) {
	t.Parallel()

	found, err := mutantsOf("pkg/p", "pkg/p/p.go", `package p

func define(flags *set, mux *mux) {
	flags.IntVar(&a, "a")
	defineOthers(flags)
	flags.StringVar(&b, "b")
	mux.HandleFunc("/", index)
	flags.Parse(b)
}
`)
	require.NoError(t, err)

	var swapped []string

	for _, m := range found {
		if strings.Contains(m.name, ": swap: ") {
			swapped = append(swapped, m.name)
		}
	}

	require.Equal(t, []string{
		`pkg/p define: swap: flags.IntVar(&a, "a")`, "pkg/p define: swap: defineOthers(flags)", `pkg/p define: swap: mux.HandleFunc("/", index)`,
	}, swapped)
}

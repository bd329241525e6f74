package setting

import (
	"encoding/csv"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/touchstone-csi/touchstone/internal/quantity"
)

// list is a Value that may be repeated. The first Set replaces the default, the others add to it.
type list struct {
	shape string
	get   func() []string
	put   func(texts []string) error
	reset func()
	check func() error
	added bool
}

func (l *list) String() string     { return strings.Join(l.get(), ",") }
func (l *list) Type() string       { return l.shape }
func (l *list) Reset()             { l.reset() }
func (l *list) IsZero() bool       { return len(l.get()) == 0 }
func (l *list) Check() error       { return l.check() }
func (l *list) GetSlice() []string { return l.get() }

// Set takes values separated by commas, as a line of a CSV file.
func (l *list) Set(text string) error {
	if strings.ContainsAny(strings.TrimRight(text, "\r\n"), "\r\n") {
		return Errorf("%.100q has several lines; separate the values by commas", text)
	}

	var texts []string

	if text != "" {
		var err error
		if texts, err = csv.NewReader(strings.NewReader(text)).Read(); err != nil {
			return fmt.Errorf("%.100q: %w", text, err)
		}
	}

	if l.added {
		texts = append(l.get(), texts...)
	}

	return l.Replace(texts)
}

// Append implements pflag.SliceValue.
func (l *list) Append(text string) error { return l.Replace(append(l.get(), text)) }

// Replace implements pflag.SliceValue.
func (l *list) Replace(texts []string) error {
	l.added = true

	return l.put(texts)
}

// List has texts that pass the check; nil accepts any.
func List(at *[]string, initial []string, check func(string) error) Value {
	return &list{
		shape: "values",
		get:   func() []string { return slices.Clone(*at) },
		put: func(texts []string) error {
			*at = texts

			return nil
		},
		reset: func() { *at = slices.Clone(initial) },
		check: func() error {
			var problems []error

			for _, text := range *at {
				if check != nil {
					problems = append(problems, check(text))
				}
			}

			return errors.Join(problems...)
		},
	}
}

// Map has pairs of that shape, such as NAME=DIRECTORY, with each name once, which pass the check.
//
//nolint:gocritic // the field is replaced
func Map(at *map[string]string, initial map[string]string, shape string, check func(name, value string) error) Value {
	text := func(text string) (string, error) { return text, nil }

	return pairs(at, initial, shape, text, func(text string) string { return text }, check)
}

// Sizes has pairs of NAME=SIZE.
//
//nolint:gocritic // the field is replaced
func Sizes(at *map[string]int64) Value {
	return pairs(at, nil, "NAME=SIZE", func(text string) (int64, error) {
		size, err := quantity.ParseSize(text)
		if err != nil {
			return 0, fmt.Errorf("%.100q %w", text, err)
		}

		return size, nil
	}, func(size int64) string { return strconv.FormatInt(size, 10) }, func(name string, size int64) error {
		if size < 0 {
			return Errorf("%s=%d cannot be negative", name, size)
		}

		return nil
	})
}

func pairs[T any](
	at *map[string]T, initial map[string]T, //nolint:gocritic // the field is replaced
	shape string, parse func(string) (T, error), show func(T) string, check func(string, T) error,
) Value {
	return &list{
		shape: shape,
		get: func() []string {
			texts := make([]string, 0, len(*at))
			for _, name := range slices.Sorted(maps.Keys(*at)) {
				texts = append(texts, name+"="+show((*at)[name]))
			}

			return texts
		},
		put: func(texts []string) error {
			read := make(map[string]T, len(texts))

			for _, text := range texts {
				name, rest, ok := strings.Cut(text, "=")
				if !ok || name == "" || rest == "" {
					return Errorf("%.100q is not %s", text, shape)
				}

				if _, exists := read[name]; exists {
					return Errorf("%q twice", name)
				}

				value, err := parse(rest)
				if err != nil {
					return err
				}

				read[name] = value
			}

			*at = read

			return nil
		},
		reset: func() { *at = maps.Clone(initial) },
		check: func() error {
			var problems []error
			for _, name := range slices.Sorted(maps.Keys(*at)) {
				if check != nil {
					problems = append(problems, check(name, (*at)[name]))
				}
			}

			return errors.Join(problems...)
		},
	}
}

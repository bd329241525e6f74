package setting

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/touchstone-csi/touchstone/internal/quantity"
)

// Value is a value in a field of the configuration.
type Value interface {
	// String returns the value as Set takes it.
	String() string
	// Set parses the value of a flag, variable or key. It checks no range.
	Set(text string) error
	// Type is the shape of a value, for users.
	Type() string
	// Reset sets the default.
	Reset()
	// IsZero reports whether the value is 0 or empty. No boolean is.
	IsZero() bool
	// Check returns why the value in the field cannot be used.
	Check() error
}

// Errorf returns why a value cannot be used.
func Errorf(format string, args ...any) error {
	return fmt.Errorf(format, args...) //nolint:err113 // the caller's format is the message
}

// scalar is a Value that is not repeated.
type scalar[T comparable] struct {
	at      *T
	initial T
	kind    string
	parse   func(text string) (T, error)
	show    func(T) string
	check   func(T) error
}

func (s scalar[T]) String() string { return s.show(*s.at) }
func (s scalar[T]) Type() string   { return s.kind }
func (s scalar[T]) Reset()         { *s.at = s.initial }
func (s scalar[T]) Check() error   { return s.check(*s.at) }

func (s scalar[T]) IsZero() bool { return *s.at == *new(T) && s.kind != "bool" }

func (s scalar[T]) Set(text string) error {
	value, err := s.parse(text)
	if err != nil {
		return fmt.Errorf("%.100q %w", text, err)
	}

	*s.at = value

	return nil
}

// replace returns the problem instead of a parser's error, which names the function.
func replace(err error, problem string) error {
	if err != nil {
		return Errorf("%s", problem)
	}

	return nil
}

// Text is a text that passes the check if it is not empty; nil accepts any.
func Text(at *string, initial string, check func(string) error) Value {
	same := func(text string) string { return text }

	return scalar[string]{at, initial, "string", func(text string) (string, error) { return text, nil }, same, func(text string) error {
		if text == "" || check == nil {
			return nil
		}

		return check(text)
	}}
}

// Word is one of the words, of which one may be empty.
func Word[T ~string](at *T, initial T, words ...T) Value {
	var shown []string

	for _, word := range words {
		if word != "" {
			shown = append(shown, string(word))
		}
	}

	parse, show := func(text string) (T, error) { return T(text), nil }, func(word T) string { return string(word) }

	return scalar[T]{at, initial, strings.Join(shown, "|"), parse, show, func(word T) error {
		if slices.Contains(words, word) {
			return nil
		}

		return Errorf("%q is not one of %s", word, strings.Join(shown, ", "))
	}}
}

// Bool is true or false. The field has the opposite if inverted is true.
func Bool(at *bool, initial, inverted bool) Value {
	parse := func(text string) (bool, error) {
		value, err := strconv.ParseBool(text)

		return value != inverted, replace(err, "is not true or false")
	}
	show := func(value bool) string { return strconv.FormatBool(value != inverted) }

	return scalar[bool]{at, initial != inverted, "bool", parse, show, func(bool) error { return nil }}
}

// number is a Value of a number that is not negative, and at most most.
func number[T ~int | ~int64 | ~float64](at *T, initial, most T, kind string, parse func(string) (T, error), show func(T) string) Value {
	return scalar[T]{at, initial, kind, parse, show, func(value T) error {
		switch {
		case value < 0:
			return Errorf("%s cannot be negative", show(value))
		case value <= most:
			return nil
		default: // NaN, too
			return Errorf("%s is more than %s", show(value), show(most))
		}
	}}
}

// Int is a whole number of at most most.
func Int[T ~int | ~int64](at *T, initial, most T) Value {
	return number(at, initial, most, "int", func(text string) (T, error) {
		value, err := strconv.ParseInt(text, 0, 64)

		return T(value), replace(err, "is not a whole number")
	}, func(value T) string { return strconv.FormatInt(int64(value), 10) })
}

// Float is a number of at most most.
func Float(at *float64, initial, most float64) Value {
	return number(at, initial, most, "float", func(text string) (float64, error) {
		value, err := strconv.ParseFloat(text, 64)

		return value, replace(err, "is not a number")
	}, func(value float64) string { return strconv.FormatFloat(value, 'g', -1, 64) })
}

// Duration is a time.
func Duration(at *time.Duration, initial time.Duration) Value {
	return number(at, initial, math.MaxInt64, "duration", func(text string) (time.Duration, error) {
		value, err := time.ParseDuration(text)

		return value, replace(err, "is not a duration such as 30s, 5m or 24h")
	}, time.Duration.String)
}

// Size is a number of bytes, with a suffix of Kubernetes' quantities or without.
func Size(at *int64, initial int64) Value {
	return number(at, initial, math.MaxInt64, "size", quantity.ParseSize, func(value int64) string { return strconv.FormatInt(value, 10) })
}

package csiclient

import (
	"context"
	"errors"
	"fmt"
	"iter"
)

// ErrTokenRepeated is returned for a page whose next token is its own, which would be
// requested in an endless loop.
var ErrTokenRepeated = errors.New("the list answered with the token that it was asked with")

// ErrListTooLong is returned for a list of more than maxElements.
var ErrListTooLong = errors.New("the list has no end")

// maxElements limits the entries of a list; each page counts as one more.
const maxElements = 1 << 20

// page is the answer of a call that lists: a part of a list, with the token of the next one.
type page[E any] interface {
	GetEntries() []E
	GetNextToken() string
}

// pages iterates over a list page by page. An error is yielded once, as the last element.
func pages[E any, P page[E]](ctx context.Context, fetch func(ctx context.Context, token string) (P, error)) iter.Seq2[E, error] {
	return func(yield func(E, error) bool) {
		var (
			token string
			none  E
			count int
		)

		for {
			got, err := fetch(ctx, token)
			if err != nil {
				yield(none, err)

				return
			}

			for _, entry := range got.GetEntries() {
				if !yield(entry, nil) {
					return
				}
			}

			count += len(got.GetEntries()) + 1
			next := got.GetNextToken()

			switch {
			case next == "":
				return
			case count > maxElements:
				yield(none, fmt.Errorf("%w: more than %d entries and pages", ErrListTooLong, maxElements))

				return
			case next == token:
				yield(none, fmt.Errorf("%w: %q", ErrTokenRepeated, token))

				return
			}

			token = next
		}
	}
}

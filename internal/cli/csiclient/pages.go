package csiclient

import (
	"context"
	"errors"
	"fmt"
	"iter"
)

// ErrSameToken is returned instead of asking for the same page for ever.
var ErrSameToken = errors.New("the list answered with the token that it was asked with")

// ErrEndless is returned for a list that goes on after maxElements.
var ErrEndless = errors.New("the list has no end")

// maxElements bounds the entries of a list, each page counted as one more.
const maxElements = 1 << 20

// page is a part of a list, and the token of the next one.
type page[E any] struct {
	entries []E
	next    string
}

// pages walks a list page by page. An error is yielded once, as the last
// element.
func pages[E any](ctx context.Context, ask func(ctx context.Context, token string) (page[E], error)) iter.Seq2[E, error] {
	return func(yield func(E, error) bool) {
		var (
			token string
			none  E
			count int
		)

		for {
			got, err := ask(ctx, token)
			if err != nil {
				yield(none, err)

				return
			}

			for _, entry := range got.entries {
				if !yield(entry, nil) {
					return
				}
			}

			if got.next == "" {
				return
			}

			if count += len(got.entries) + 1; count > maxElements {
				yield(none, fmt.Errorf("%w: more than %d entries and pages", ErrEndless, maxElements))

				return
			}

			if got.next == token {
				yield(none, fmt.Errorf("%w: %q", ErrSameToken, token))

				return
			}

			token = got.next
		}
	}
}

package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"iter"
)

// ErrSameToken is returned instead of asking for the same page for ever.
var ErrSameToken = errors.New("the list answered with the token that it was asked with")

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

			if got.next == token {
				yield(none, fmt.Errorf("%w: %q", ErrSameToken, token))

				return
			}

			token = got.next
		}
	}
}

package ctl

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// TestChangesAreShownOnce is what --watch prints.
func TestChangesAreShownOnce(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer

		ctx, interrupt := context.WithCancel(t.Context())
		texts := []string{"one", "one", "two", "one"}
		s := &session{printer: &printer{out: &out}}

		require.NoError(t, s.watching(ctx, func(context.Context) error {
			if len(texts) == 0 {
				interrupt()

				return s.printLine("a part")
			}

			text := texts[0]
			texts = texts[1:]

			return s.printLine(text)
		}))
		require.Equal(t, "one\ntwo\none\n", out.String())
	})
}

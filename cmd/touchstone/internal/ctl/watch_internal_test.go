package ctl

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestChangesAreShownOnce is what --watch prints.
func TestChangesAreShownOnce(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer

	screen := &changes{to: &out}
	for _, text := range []string{"one\n", "one\n", "two\n", "one\n"} {
		fmt.Fprint(screen, text)
		require.NoError(t, screen.flush())
	}

	require.Equal(t, "one\ntwo\none\n", out.String())
}

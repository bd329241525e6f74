// Package errtext requires words of an error, also of one that is nil: testify's ErrorContains says of that
// only that an error is expected.
package errtext

import (
	"fmt"

	"github.com/stretchr/testify/require"
)

// Require requires an error whose text contains the words. What follows is a format and its arguments, which
// say what was called.
func Require(t require.TestingT, err error, words string, called ...any) {
	if helper, ok := t.(interface{ Helper() }); ok {
		helper.Helper()
	}

	if err == nil {
		require.FailNow(t, fmt.Sprintf("no error, want one that says %q", words), called...)
	}

	require.ErrorContains(t, err, words, called...)
}

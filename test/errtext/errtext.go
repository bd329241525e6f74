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

	about := ""
	if len(called) > 0 {
		about = fmt.Sprintf(fmt.Sprint(called[0]), called[1:]...) + ": "
	}

	require.Error(t, err, "%swant: an error that says %q", about, words)
	require.ErrorContains(t, err, words, "%swant: the error says so", about)
}

package errtext_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/errtext"
)

// failure keeps the text of failed assertions, and goes on after the first one as no test does.
type failure struct{ text string }

func (f *failure) Errorf(format string, arguments ...any) {
	f.text += fmt.Sprintf(format, arguments...)
}

func (*failure) FailNow() {}

func TestRequire(t *testing.T) {
	t.Parallel()

	errtext.Require(t, errors.New("the pool is gone"), "is gone")

	for _, err := range []error{nil, errors.New("of another kind")} {
		var f failure

		errtext.Require(&f, err, "the pool is gone", "volume %s", "a")

		for _, part := range []string{"volume a", "the pool is gone"} {
			require.Contains(t, f.text, part, "want: what was called and what it must say, of %v", err)
		}
	}
}

package rpccode_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// failure keeps the text of a failed assertion.
type failure struct{ text string }

func (f *failure) Errorf(format string, arguments ...any) {
	f.text += fmt.Sprintf(format, arguments...)
}

func (*failure) FailNow() {}

func TestRequire(t *testing.T) {
	t.Parallel()

	rpccode.Require(t, nil, codes.OK)
	rpccode.Require(t, status.Error(codes.Aborted, "busy"), codes.Aborted)
	rpccode.Require(t, errors.New("of no code"), codes.Internal)

	var f failure

	rpccode.Require(&f, status.Error(codes.Internal, "the pool is gone"), codes.NotFound, "volume %s", "a")

	for _, part := range []string{"NotFound", "Internal", "volume a: ", "the pool is gone"} {
		require.Contains(t, f.text, part)
	}
}

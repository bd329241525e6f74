// Package rpccode compares the gRPC codes of errors by their names, with the error in the failure:
// an Equal of two codes prints two numbers.
package rpccode

import (
	"fmt"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
)

// Require requires the code that the caller of a handler with that error gets, which is OK for nil. What
// follows is a format and its
// arguments, which say what was called.
func Require(t require.TestingT, err error, want codes.Code, called ...any) {
	if helper, ok := t.(interface{ Helper() }); ok {
		helper.Helper()
	}

	about := ""
	if len(called) > 0 {
		about = fmt.Sprintf(fmt.Sprint(called[0]), called[1:]...) + ": "
	}

	require.Equal(t, want.String(), status.Code(rpc.Status(err)).String(), "%s%v", about, err)
}

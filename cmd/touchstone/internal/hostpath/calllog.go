package hostpath

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// verbosityOfCalls is that of klog from which on each call is logged.
const verbosityOfCalls = 5

// csiServices is the beginning of the methods of CSI.
const csiServices = "/csi.v1."

// loggedCall is what csi-mock's tests of Kubernetes parse. Its names are theirs, and the messages are
// encoded by encoding/json, by the tags of the generated types.
type loggedCall struct {
	Method    string       `json:"Method"`
	Request   any          `json:"Request"`
	Response  any          `json:"Response"`
	Error     string       `json:"Error"`
	FullError *loggedError `json:"FullError"`
}

type loggedError struct {
	Code    codes.Code `json:"code"`
	Message string     `json:"message"`
}

// Log is the outer interceptor: it writes a line `gRPCCall: {json}` for each call, with the secrets of
// both messages, as hostpathplugin does.
func (d *Dialect) Log(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	response, err := next(ctx, request)
	if d.log == nil || !strings.HasPrefix(info.FullMethod, csiServices) {
		return response, err
	}

	call := loggedCall{Method: info.FullMethod, Request: request, Response: response}
	if err != nil {
		call.Response, call.Error = nil, err.Error()
		call.FullError = &loggedError{status.Code(err), status.Convert(err).Message()}
	}

	line, failure := json.Marshal(call)
	if failure != nil {
		line = fmt.Appendf(nil, "%q", failure)
	}

	d.mu.Lock()
	defer d.mu.Unlock()

	_, _ = fmt.Fprintf(d.log, "gRPCCall: %s\n", line)

	return response, err
}

package driver

import (
	"context"
	"fmt"
	"log/slog"

	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/shorten"
)

// maxLogged is how many bytes of a message a log line holds.
const maxLogged = 8192

// call identifies the log lines of one call.
type call struct {
	number uint64
	method string
}

type callKey struct{}

// callHandler adds the call to all lines that are logged with its context.
type callHandler struct{ slog.Handler }

// Handle implements slog.Handler.
func (h callHandler) Handle(ctx context.Context, record slog.Record) error {
	if c, ok := ctx.Value(callKey{}).(call); ok {
		record.AddAttrs(slog.Uint64("call", c.number), slog.String("method", c.method))
	}

	return h.Handler.Handle(ctx, record)
}

// WithAttrs implements slog.Handler.
func (h callHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return callHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h callHandler) WithGroup(name string) slog.Handler {
	return callHandler{h.Handler.WithGroup(name)}
}

// stripped formats a message for the log, and only if the log wants it: what
// the spec marks as secret is left out, and so are mount flags and the pod's
// tokens, which are or may hold credentials although the spec does not mark them.
type stripped struct{ message any }

// LogValue implements slog.LogValuer.
func (s stripped) LogValue() slog.Value {
	message, ok := s.message.(proto.Message)
	if !ok {
		return slog.StringValue(fmt.Sprintf("%T", s.message))
	}

	text := string(rpc.JSON(rpc.HideSecrets(message)))
	if len(text) > maxLogged {
		text = fmt.Sprintf("%s (%d bytes in all)", shorten.End(text, maxLogged), len(text))
	}

	return slog.StringValue(text)
}

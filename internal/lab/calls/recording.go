package calls

import (
	"context"
	"encoding/base64"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
)

// Records reports whether calls of the method are recorded: those of CSI, but not those of
// Touchstone's own services, which are no calls of a CO.
func Records(method string) bool { return strings.HasPrefix(method, "/csi.") }

// Recording is a call that has begun. Its methods may be called concurrently: a stream sends and
// receives at the same time.
type Recording struct {
	recorder *Recorder
	ctx      context.Context //nolint:containedctx // it is a state: whether the caller still waits

	mu   sync.Mutex
	call Call
}

// Begin begins the recording of a call; End adds it.
func (r *Recorder) Begin(ctx context.Context, number uint64, method string) *Recording {
	begun := &Recording{recorder: r, ctx: ctx, call: Call{Number: number, Method: method, Started: time.Now()}}

	if deadline, ok := ctx.Deadline(); ok {
		begun.call.Deadline, begun.call.Timeout = &deadline, deadline.Sub(begun.call.Started).Seconds()
	}

	if pairs, ok := metadata.FromIncomingContext(ctx); ok {
		begun.call.Metadata = r.readable(pairs)
	}

	return begun
}

// shownMetadata are the keys of metadata whose values are recorded. The values of others may be
// credentials, whatever the keys' names.
var shownMetadata = []string{
	":authority", "content-type", "user-agent", "grpc-accept-encoding", "traceparent", "tracestate", "grpc-trace-bin",
	"x-request-id", "x-touchstone-proxy", "x-touchstone-caller",
}

// readable returns metadata without what may be credentials, and binary values in base64.
func (r *Recorder) readable(pairs metadata.MD) map[string][]string {
	read := maps.Clone(pairs)

	for key, values := range pairs {
		switch {
		case !r.config.KeepSecrets && !slices.Contains(shownMetadata, key):
			read[key] = []string{rpc.Stripped}
		case strings.HasSuffix(key, "-bin"):
			encoded := make([]string, len(values))
			for i, value := range values {
				encoded[i] = base64.StdEncoding.EncodeToString([]byte(value))
			}

			read[key] = encoded
		}
	}

	return read
}

// Request records the request.
func (b *Recording) Request(message any) {
	encoded := b.encode(message)

	b.mu.Lock()
	defer b.mu.Unlock()

	b.call.Request, b.call.Objects, b.call.name = encoded, objects(b.call.Objects, message), nameIn(message)
}

// Message records a message of a stream to the caller.
func (b *Recording) Message(message any) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if len(b.call.Messages) == MaxMessages {
		b.call.Omitted++

		return
	}

	b.call.Messages = append(b.call.Messages, b.encode(message))
}

// End records the response or the error, and the end.
func (b *Recording) End(response any, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.call.Took = time.Since(b.call.Started).Seconds()
	b.call.CallerGone = b.ctx.Err() != nil
	b.call.Code = rpc.CodeName(status.Code(err))

	if err != nil {
		b.call.Message = strings.ToValidUTF8(status.Convert(err).Message(), "�")
	} else {
		b.call.Response, b.call.Objects = b.encode(response), objects(b.call.Objects, response)
		_, b.call.id = rpc.Created(response)
	}

	b.recorder.add(&b.call)
}

func (b *Recording) encode(message any) []byte {
	typed, ok := message.(proto.Message)
	if !ok {
		return nil
	}

	if !b.recorder.config.KeepSecrets {
		typed = rpc.HideSecrets(typed)
	}

	return rpc.JSON(typed)
}

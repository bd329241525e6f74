package fuzz_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
)

const (
	// hangs only ends a call that would hang; it is no verdict on speed.
	hangs = time.Minute
	// strangers of each method are tried without a fuzzer, too.
	strangers  = 12
	editsBytes = 96
)

func FuzzIdentity(f *testing.F)         { fuzzBytes(f, "Identity") }
func FuzzController(f *testing.F)       { fuzzBytes(f, "Controller") }
func FuzzGroupController(f *testing.F)  { fuzzBytes(f, "GroupController") }
func FuzzSnapshotMetadata(f *testing.F) { fuzzBytes(f, "SnapshotMetadata") }
func FuzzNode(f *testing.F)             { fuzzBytes(f, "Node") }

// fuzzBytes sends arbitrary bytes instead of encoded requests.
func fuzzBytes(f *testing.F, service string) {
	f.Helper()

	all := methods(f, service)

	for i, each := range all {
		f.Add(byte(i), []byte{})
		f.Add(byte(i), []byte("\x0a\x02\xff\xfe"))

		for _, message := range each.valid() {
			wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
			require.NoError(f, err)
			f.Add(byte(i), wire)
			f.Add(byte(i), wire[:len(wire)/2])
		}
	}

	w := newWorld(f)

	f.Fuzz(func(t *testing.T, chosen byte, wire []byte) { _ = w.send(t, all[int(chosen)%len(all)], wire) })
}

// FuzzFields sends valid requests of all services with strange fields.
func FuzzFields(f *testing.F) {
	all := methods(f, "")
	random := rand.NewChaCha8([32]byte{})

	for i, each := range all {
		for example := range each.valid() {
			f.Add(byte(i), byte(example), []byte{})

			for range strangers {
				if len(examples()[each.name]) == 0 {
					break // it has no fields, or is not there
				}

				bytes := make([]byte, editsBytes)
				_, _ = random.Read(bytes)
				f.Add(byte(i), byte(example), bytes)
			}
		}
	}

	w := newWorld(f)

	f.Fuzz(func(t *testing.T, chosen, example byte, script []byte) {
		to := all[int(chosen)%len(all)]
		valid := to.valid()
		request := valid[int(example)%len(valid)]
		(&edits{left: script}).message(request.ProtoReflect())

		wire, err := proto.Marshal(request)
		require.NoError(t, err)
		_ = w.send(t, to, wire)
	})
}

// send makes the call and judges what came of it. It returns the refusal.
func (w *world) send(t *testing.T, to method, wire []byte) error {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), hangs)
	defer cancel()

	wire = w.translate(wire)
	request := to.input.New().Interface()
	_ = proto.Unmarshal(wire, request) // what cannot be read is sent, too

	response := w.responseOf(t, to)

	defer w.recover(t)

	before := w.seen
	err := w.call(ctx, t, to, wire, response)
	code := status.Code(err)

	for _, never := range []codes.Code{
		codes.Unknown, codes.Internal, codes.DataLoss, codes.Unavailable, codes.Canceled, codes.DeadlineExceeded,
	} {
		require.NotEqual(t, never, code, "%s %v: %v", to.name, request, err)
	}

	require.LessOrEqual(t, code, codes.Unauthenticated, "no gRPC code")

	after, observing := w.observe(ctx)
	require.NoError(t, observing)

	w.seen = after
	require.Equal(t, before.Outside, after.Outside, "%s %v touched what is outside", to.name, request)

	if !deletesSnapshots(request) {
		require.Subset(t, after.Snapshots, before.Snapshots, "%s %v changed a snapshot", to.name, request)
	}

	if err != nil {
		require.NotEmpty(t, status.Convert(err).Message(), "%s %v", to.name, request)
		require.Equal(t, before, after, "%s %v was refused with %v", to.name, request, err)

		return err
	}

	require.NoError(t, w.undo(ctx, request, response, before), "after %s %v", to.name, request)

	// Devices' numbers and the idle volume's id may be others now.
	w.seen, err = w.observe(ctx)
	require.NoError(t, err)
	require.Len(t, w.seen.Mounts, len(before.Mounts), "after %s %v", to.name, request)
	require.Len(t, w.seen.Devices, len(before.Devices), "after %s %v", to.name, request)
	require.Len(t, w.seen.Pool, len(before.Pool), "after %s %v", to.name, request)
	require.Len(t, w.seen.Snapshots, len(before.Snapshots), "after %s %v", to.name, request)
	require.Len(t, w.seen.Listed, len(before.Listed), "after %s %v", to.name, request)

	return nil
}

// call sends the request and reads all that comes. The response is the last
// message.
func (w *world) call(ctx context.Context, t *testing.T, to method, wire []byte, response proto.Message) error {
	t.Helper()

	asIs := grpc.ForceCodecV2(newRaw())
	if !to.streams {
		return w.conn.Invoke(ctx, to.name, wire, response, asIs)
	}

	stream, err := w.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, to.name, asIs)
	if err != nil {
		return err
	}

	// RecvMsg returns what ended the stream.
	if err := stream.SendMsg(wire); err != nil && !errors.Is(err, io.EOF) {
		return err
	}

	if err := stream.CloseSend(); err != nil {
		return err
	}

	for end := int64(0); ; {
		err := stream.RecvMsg(response)

		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}

		end = inOrder(t, response, end)
	}
}

// inOrder wants the ranges of a message to be of the volume, and each behind the
// one before it. It returns where the last one ends.
func inOrder(t *testing.T, response proto.Message, end int64) int64 {
	t.Helper()

	message, ok := response.(csiclient.BlockMetadata)
	require.True(t, ok, "%T", response)

	for _, each := range message.GetBlockMetadata() {
		require.GreaterOrEqual(t, each.GetByteOffset(), end, "want: the blocks are in order and do not overlap")
		require.Positive(t, each.GetSizeBytes(), "want: each block has a size")

		end = each.GetByteOffset() + each.GetSizeBytes()
		require.LessOrEqual(t, end, message.GetVolumeCapacityBytes(), "want: no block ends behind the volume")
	}

	return end
}

// recover keeps what one call has done wrong from being blamed on the next.
func (w *world) recover(t *testing.T) {
	t.Helper()

	if !t.Failed() {
		return
	}

	ctx := context.Background()
	restored := w.restore(ctx)

	var err error
	if w.seen, err = w.observe(ctx); err != nil || restored != nil {
		t.Logf("recover: %v, %v", restored, err)
	}
}

func (w *world) responseOf(t *testing.T, to method) proto.Message {
	t.Helper()

	name := to.input.Descriptor().FullName()
	found, err := protoregistry.GlobalTypes.FindMessageByName(name[:len(name)-len("Request")] + "Response")
	require.NoError(t, err)

	return found.New().Interface()
}

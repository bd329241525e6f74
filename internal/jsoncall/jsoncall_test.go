package jsoncall_test

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/touchstone-csi/touchstone/internal/jsoncall"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

const service = "example.v1.Counter"

// number is what the calls return.
type number struct {
	Value int64  `json:"value"`
	Text  string `json:"text,omitempty"`
}

// large is more than grpc's limit.
var large = strings.Repeat("x", 5<<20)

// connect serves one method and one stream, each of which counts up to what is requested. A negative
// number is refused; 13 has an answer that is no JSON, and 17 a large one.
func connect(t *testing.T, options ...grpc.ServerOption) *grpc.ClientConn {
	t.Helper()

	answerTo := func(to int64) (any, error) {
		switch {
		case to < 0:
			return nil, status.Error(codes.OutOfRange, "less than 0")
		case to == 13:
			return make(chan int), nil
		case to == 17:
			return number{to, large}, nil
		default:
			return number{Value: to}, nil
		}
	}

	server := grpc.NewServer(options...)
	jsoncall.RegisterStreams(server, service,
		[]grpc.MethodDesc{jsoncall.Method(service, "Get", func(_ context.Context, request *wrapperspb.Int64Value) (any, error) {
			return answerTo(request.GetValue())
		})},
		jsoncall.Stream(service, "Count", func(_ context.Context, request *wrapperspb.Int64Value, send func(any) error) error {
			for i := range max(request.GetValue(), 0) {
				if err := send(number{Value: i}); err != nil {
					return err
				}
			}

			last, err := answerTo(request.GetValue())
			if err != nil {
				return err
			}

			return send(last)
		}))

	return connectTo(t, server)
}

func connectTo(t *testing.T, server *grpc.Server) *grpc.ClientConn {
	t.Helper()

	listener := bufconn.Listen(1 << 16)

	go func() { _ = server.Serve(listener) }()

	t.Cleanup(server.Stop)

	connection, err := grpc.NewClient("passthrough:///", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })

	return connection
}

func TestAskReturnsTheAnswerOrItsError(t *testing.T) {
	t.Parallel()

	connection := connect(t)

	for name, test := range map[string]struct {
		method string
		given  int64
		code   codes.Code
		says   string
	}{
		"an answer":                 {"Get", 7, codes.OK, ""},
		"a refusal":                 {"Get", -1, codes.OutOfRange, "less than 0"},
		"an answer that is no JSON": {"Get", 13, codes.Unknown, "encode the answer of /example.v1.Counter/Get"},
		"no such method":            {"Set", 7, codes.Unimplemented, "unknown method Set"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var got number

			err := jsoncall.Ask(t.Context(), connection, jsoncall.FullMethod(service, test.method), wrapperspb.Int64(test.given), &got)
			rpccode.Require(t, err, test.code)

			if test.says != "" {
				errtext.Require(t, err, test.says)
			} else {
				require.Equal(t, number{Value: test.given}, got)
			}
		})
	}

	var other struct {
		Value string `json:"value"`
	}

	err := jsoncall.Ask(t.Context(), connection, jsoncall.FullMethod(service, "Get"), wrapperspb.Int64(1), &other)
	errtext.Require(t, err, "decode the answer of /example.v1.Counter/Get")
}

func TestFollowYieldsTheAnswersInOrder(t *testing.T) {
	t.Parallel()

	connection := connect(t)

	follow := func(given int64, yield func(number) error) error {
		return jsoncall.Follow(t.Context(), connection, jsoncall.FullMethod(service, "Count"), wrapperspb.Int64(given), yield)
	}

	for name, test := range map[string]struct {
		given int64
		want  int
		code  codes.Code
	}{
		"answers, in order": {5, 6, codes.OK},
		"a refusal":         {-1, 0, codes.OutOfRange},
		"an error behind the last of the answers": {13, 13, codes.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var got []number

			err := follow(test.given, func(each number) error {
				got = append(got, each)

				return nil
			})
			rpccode.Require(t, err, test.code)
			require.Len(t, got, test.want, "want: Follow yields each message before the error")

			for i, each := range got {
				require.EqualValues(t, i, each.Value, "answer %d", i)
			}
		})
	}

	seen := 0
	err := follow(5, func(number) error {
		seen++

		return net.ErrClosed
	})
	require.ErrorIs(t, err, net.ErrClosed, "want: the error of yield")
	require.Equal(t, 1, seen, "the calls of yield after its error")

	err = jsoncall.Follow(t.Context(), connection, jsoncall.FullMethod(service, "Count"), wrapperspb.Int64(1),
		func(struct{ Value string }) error { return nil })
	errtext.Require(t, err, "decode an answer of /example.v1.Counter/Count")
}

// TestAStreamEndsWithItsReader, whose context goes on.
func TestAStreamEndsWithItsReader(t *testing.T) {
	t.Parallel()

	ended := make(chan struct{})
	server := grpc.NewServer()
	jsoncall.RegisterStreams(server, service, nil,
		jsoncall.Stream(service, "Wait", func(ctx context.Context, _ *wrapperspb.Int64Value, send func(any) error) error {
			defer close(ended)

			if err := send(number{Value: 1}); err != nil {
				return err
			}

			<-ctx.Done()

			return ctx.Err()
		}))

	connection := connectTo(t, server)
	err := jsoncall.Follow(t.Context(), connection, jsoncall.FullMethod(service, "Wait"), wrapperspb.Int64(1),
		func(number) error { return net.ErrClosed })
	require.ErrorIs(t, err, net.ErrClosed, "want: the error of yield")
	await.Receive(t, ended, "the stream to end on the server")
}

// TestInterceptorsSeeTheCall is for access control and the call log, which are interceptors.
func TestInterceptorsSeeTheCall(t *testing.T) {
	t.Parallel()

	connection := connect(t, grpc.UnaryInterceptor(
		func(ctx context.Context, request any, info *grpc.UnaryServerInfo, call grpc.UnaryHandler) (any, error) {
			given, ok := request.(*wrapperspb.Int64Value)
			if !ok || info.FullMethod != "/example.v1.Counter/Get" {
				return nil, status.Errorf(codes.Internal, "%s of %T", info.FullMethod, request)
			}

			given.Value++

			return call(ctx, given)
		}))

	var got number

	require.NoError(t, jsoncall.Ask(t.Context(), connection, jsoncall.FullMethod(service, "Get"), wrapperspb.Int64(1), &got))
	require.Equal(t, number{Value: 2}, got)
}

// TestLargeAnswersPass grpc's default limit.
func TestLargeAnswersPass(t *testing.T) {
	t.Parallel()

	connection := connect(t)

	var got number

	require.NoError(t, jsoncall.Ask(t.Context(), connection, jsoncall.FullMethod(service, "Get"), wrapperspb.Int64(17), &got))
	require.Equal(t, number{17, large}, got)
	require.NoError(t, jsoncall.Follow(t.Context(), connection, jsoncall.FullMethod(service, "Count"), wrapperspb.Int64(17),
		func(each number) error {
			got = each

			return nil
		}))
	require.Equal(t, number{17, large}, got)
}

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Name() string                  { return "proto" }
func (rawCodec) Unmarshal([]byte, any) error   { return nil }
func (rawCodec) Marshal(v any) ([]byte, error) { return v.([]byte), nil }

// TestUnreadableRequestsFail: they are not answered, and calls without a connection fail.
func TestUnreadableRequestsFail(t *testing.T) {
	t.Parallel()

	connection := connect(t)
	unreadable := []byte{0x08, 0xff}
	err := connection.Invoke(t.Context(), jsoncall.FullMethod(service, "Get"), unreadable, new([]byte), grpc.ForceCodec(rawCodec{}))
	rpccode.Require(t, err, codes.Internal)

	stream, err := connection.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, jsoncall.FullMethod(service, "Count"),
		grpc.ForceCodec(rawCodec{}))
	require.NoError(t, err)
	require.NoError(t, stream.SendMsg(unreadable))
	rpccode.Require(t, stream.RecvMsg(new([]byte)), codes.Internal)

	require.NoError(t, connection.Close())

	var got number

	err = jsoncall.Ask(t.Context(), connection, jsoncall.FullMethod(service, "Get"), wrapperspb.Int64(1), &got)
	rpccode.Require(t, err, codes.Canceled)

	err = jsoncall.Follow(t.Context(), connection, jsoncall.FullMethod(service, "Count"), wrapperspb.Int64(1), func(number) error { return nil })
	rpccode.Require(t, err, codes.Canceled)
}

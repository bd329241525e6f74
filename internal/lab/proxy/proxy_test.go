package proxy_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/lab/proxy"
	"github.com/touchstone-csi/touchstone/internal/socket"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/awaitcall"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// waitLimit is no verdict on speed: it only ends a test that would hang.
const waitLimit = time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// upstream is a server that does what the test says.
type upstream struct {
	grpc_testing.UnimplementedTestServiceServer

	unary  func(context.Context, *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error)
	duplex func(grpc_testing.TestService_FullDuplexCallServer) error
	input  func(grpc_testing.TestService_StreamingInputCallServer) error
	output func(*grpc_testing.StreamingOutputCallRequest, grpc_testing.TestService_StreamingOutputCallServer) error
}

func (u *upstream) UnaryCall(ctx context.Context, request *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	return u.unary(ctx, request)
}

func (u *upstream) FullDuplexCall(stream grpc_testing.TestService_FullDuplexCallServer) error {
	return u.duplex(stream)
}

func (u *upstream) StreamingInputCall(stream grpc_testing.TestService_StreamingInputCallServer) error {
	return u.input(stream)
}

func (u *upstream) StreamingOutputCall(
	request *grpc_testing.StreamingOutputCallRequest, stream grpc_testing.TestService_StreamingOutputCallServer,
) error {
	return u.output(request, stream)
}

// serveUpstream returns what ends the server abruptly.
func serveUpstream(t *testing.T, network, address string, served *upstream) (stop func(), at net.Addr) {
	t.Helper()

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), network, address)
	require.NoError(t, err)

	server := grpc.NewServer(grpc.MaxRecvMsgSize(1 << 30))
	grpc_testing.RegisterTestServiceServer(server, served)

	done := make(chan error, 1)

	go func() { done <- server.Serve(listener) }()

	ended := false
	stop = func() {
		if !ended {
			ended = true

			server.Stop()
			require.NoError(t, await.Receive(t, done, "the server to end"))
		}
	}
	t.Cleanup(stop)

	return stop, listener.Addr()
}

// through returns a client whose calls go through a proxy to the address.
func through(t *testing.T, address string) grpc_testing.TestServiceClient {
	t.Helper()

	made, err := proxy.New(address)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, made.Close()) })

	path := filepath.Join(t.TempDir(), "proxy.sock")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	require.NoError(t, err)

	server := grpc.NewServer(made.ServerOptions()...)
	done := make(chan error, 1)

	go func() { done <- server.Serve(listener) }()

	t.Cleanup(func() { server.Stop(); require.NoError(t, await.Receive(t, done, "the server to end")) })

	conn, err := grpc.NewClient("unix:"+path, append(awaitcall.Options(t), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })

	return grpc_testing.NewTestServiceClient(conn)
}

func proxied(t *testing.T, served *upstream) grpc_testing.TestServiceClient {
	t.Helper()

	path := filepath.Join(t.TempDir(), "upstream.sock")
	serveUpstream(t, "unix", path, served)

	return through(t, "unix://"+path)
}

func request(text string) *grpc_testing.SimpleRequest {
	return &grpc_testing.SimpleRequest{Payload: &grpc_testing.Payload{Body: []byte(text)}}
}

func TestMetadataAndMessagesPassBothWays(t *testing.T) {
	t.Parallel()

	binary := string([]byte{0, 1, 255})
	client := proxied(t, &upstream{
		unary: func(ctx context.Context, got *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
			received, _ := metadata.FromIncomingContext(ctx)
			back := metadata.MD{"key": received["key"], "key-bin": received["key-bin"]}

			if err := errors.Join(grpc.SetHeader(ctx, back), grpc.SetTrailer(ctx, metadata.Pairs("last-bin", binary))); err != nil {
				return nil, err
			}

			return &grpc_testing.SimpleResponse{Payload: got.GetPayload()}, nil
		},
	})

	var header, trailer metadata.MD

	ctx := metadata.AppendToOutgoingContext(t.Context(), "key", "a", "key", "b", "key-bin", binary)
	// A message beyond gRPC's default of 4 MiB is for the server to refuse.
	large := string(bytes.Repeat([]byte("x"), 9<<20))

	answer, err := client.UnaryCall(ctx, request(large), grpc.Header(&header), grpc.Trailer(&trailer))
	require.NoError(t, err)
	require.Len(t, answer.GetPayload().GetBody(), len(large), "want: the large body arrives whole")
	require.Equal(t, []string{"a", "b"}, header.Get("key"))
	require.Equal(t, []string{binary}, header.Get("key-bin"))
	require.Equal(t, []string{binary}, trailer.Get("last-bin"))
	require.Empty(t, header.Get("last-bin"), "want: the trailer is not in the header")
}

func TestUnknownFieldsPass(t *testing.T) {
	t.Parallel()

	client := proxied(t, &upstream{
		unary: func(_ context.Context, got *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
			answer := &grpc_testing.SimpleResponse{}
			answer.ProtoReflect().SetUnknown(got.ProtoReflect().GetUnknown())

			return answer, nil
		},
	})

	// Field 2000, a varint.
	unknown := []byte{0x80, 0x7d, 0x2a}
	asked := request("")
	asked.ProtoReflect().SetUnknown(unknown)

	answer, err := client.UnaryCall(t.Context(), asked)
	require.NoError(t, err)
	require.Equal(t, unknown, []byte(answer.ProtoReflect().GetUnknown()))
}

func TestStatusPassesWithItsDetails(t *testing.T) {
	t.Parallel()

	told, err := status.New(codes.OutOfRange, "zu groß: 5 % mehr").WithDetails(&errdetails.ErrorInfo{Reason: "SIZE"})
	require.NoError(t, err)

	client := proxied(t, &upstream{
		unary: func(context.Context, *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
			return nil, told.Err()
		},
		output: func(_ *grpc_testing.StreamingOutputCallRequest, to grpc_testing.TestService_StreamingOutputCallServer) error {
			to.SetTrailer(metadata.Pairs("why", "because"))

			return errors.Join(to.Send(&grpc_testing.StreamingOutputCallResponse{}), told.Err())
		},
	})

	_, err = client.UnaryCall(t.Context(), request(""))
	require.True(t, proto.Equal(told.Proto(), status.Convert(err).Proto()), "%v", err)

	stream, err := client.StreamingOutputCall(t.Context(), &grpc_testing.StreamingOutputCallRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	_, err = stream.Recv()
	rpccode.Require(t, err, codes.OutOfRange)
	require.Equal(t, []string{"because"}, stream.Trailer().Get("why"))

	_, err = client.UnimplementedCall(t.Context(), &grpc_testing.Empty{})
	rpccode.Require(t, err, codes.Unimplemented)
}

func TestStreamMessagesPassAtOnce(t *testing.T) {
	t.Parallel()

	client := proxied(t, &upstream{duplex: func(stream grpc_testing.TestService_FullDuplexCallServer) error {
		// Before any message.
		if err := stream.SendHeader(metadata.Pairs("began", "yes")); err != nil {
			return err
		}

		for {
			got, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}

			if err == nil {
				err = stream.Send(&grpc_testing.StreamingOutputCallResponse{Payload: got.GetPayload()})
			}

			if err != nil {
				return err
			}
		}
	}})

	stream, err := client.FullDuplexCall(t.Context())
	require.NoError(t, err)

	header, err := stream.Header()
	require.NoError(t, err)
	require.Equal(t, []string{"yes"}, header.Get("began"))

	for number := range 100 {
		body := []byte(strconv.Itoa(number))
		require.NoError(t, stream.Send(&grpc_testing.StreamingOutputCallRequest{Payload: &grpc_testing.Payload{Body: body}}))

		got, err := stream.Recv()
		require.NoError(t, err)
		require.Equal(t, body, got.GetPayload().GetBody())
	}

	require.NoError(t, stream.CloseSend())
	_, err = stream.Recv()
	require.ErrorIs(t, err, io.EOF)
}

func TestStreamOfRequestsPasses(t *testing.T) {
	t.Parallel()

	client := proxied(t, &upstream{input: func(stream grpc_testing.TestService_StreamingInputCallServer) error {
		var size int32

		for {
			got, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return stream.SendAndClose(&grpc_testing.StreamingInputCallResponse{AggregatedPayloadSize: size})
			}

			if err != nil {
				return err
			}

			size += int32(len(got.GetPayload().GetBody()))
		}
	}})

	stream, err := client.StreamingInputCall(t.Context())
	require.NoError(t, err)

	for range 10 {
		require.NoError(t, stream.Send(&grpc_testing.StreamingInputCallRequest{Payload: &grpc_testing.Payload{Body: []byte("abc")}}))
	}

	answer, err := stream.CloseAndRecv()
	require.NoError(t, err)
	require.EqualValues(t, 30, answer.GetAggregatedPayloadSize(), "want: the sizes of all requests are added up")
}

// TestServerMayEndAStreamEarly shows the server's reason.
func TestServerMayEndAStreamEarly(t *testing.T) {
	t.Parallel()

	client := proxied(t, &upstream{input: func(stream grpc_testing.TestService_StreamingInputCallServer) error {
		if _, err := stream.Recv(); err != nil {
			return err
		}

		return status.Error(codes.ResourceExhausted, "enough")
	}})

	stream, err := client.StreamingInputCall(t.Context())
	require.NoError(t, err)

	for err == nil {
		err = stream.Send(&grpc_testing.StreamingInputCallRequest{})
	}

	require.ErrorIs(t, err, io.EOF)
	rpccode.Require(t, stream.RecvMsg(&grpc_testing.StreamingInputCallResponse{}), codes.ResourceExhausted)
}

func TestDeadlineAndCancellationPass(t *testing.T) {
	t.Parallel()

	// As many as there may be calls.
	entered, ended := make(chan bool, 100), make(chan error, 100)
	client := proxied(t, &upstream{
		unary: func(ctx context.Context, _ *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
			_, has := ctx.Deadline()
			entered <- has

			<-ctx.Done()
			ended <- ctx.Err()

			return nil, status.FromContextError(ctx.Err()).Err()
		},
	})

	call := func(ctx context.Context) chan error {
		answer := make(chan error, 1)

		go func() {
			_, err := client.UnaryCall(ctx, request(""))
			answer <- err
		}()

		return answer
	}

	ctx, cancel := context.WithCancel(t.Context())
	answer := call(ctx)
	require.False(t, await.Receive(t, entered, "the call to reach the driver"), "want: the driver sees no deadline where the client has none")
	cancel()
	require.ErrorIs(t, await.Receive(t, ended, "the driver's call to be cancelled"), context.Canceled)
	rpccode.Require(t, await.Receive(t, answer, "the proxy's answer"), codes.Canceled)

	// Until it is long enough for the call to be there before.
	for limit, met := time.Second, false; !met; limit *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		answer := call(ctx)

		rpccode.Require(t, await.Receive(t, answer, "the proxy's answer"), codes.DeadlineExceeded)
		cancel()

		select {
		case limited := <-entered:
			met = true

			require.True(t, limited, "want: the call has the caller's deadline")
			require.Error(t, await.Receive(t, ended, "the driver's call to end"), "the driver's call after its caller has left")
		default:
		}
	}
}

func TestMissingUpstreamIsUnavailable(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "upstream.sock")
	client := through(t, path)

	_, err := client.UnaryCall(t.Context(), request(""))
	rpccode.Require(t, err, codes.Unavailable)
	errtext.Require(t, err, path)

	// It comes, and goes in the middle of a call.
	entered := make(chan struct{})
	stop, _ := serveUpstream(t, "unix", path, &upstream{
		unary: func(ctx context.Context, _ *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
			close(entered)
			<-ctx.Done()

			return nil, ctx.Err()
		},
	})
	answer := make(chan error, 1)

	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
		defer cancel()

		for {
			// The proxy dials again after a delay.
			_, err := client.UnaryCall(ctx, request(""))

			select {
			case <-entered:
				answer <- err

				return
			case <-ctx.Done():
				answer <- err

				return
			default:
			}
		}
	}()

	await.Receive(t, entered, "the call to reach the driver")
	stop()
	rpccode.Require(t, await.Receive(t, answer, "the proxy's answer"), codes.Unavailable)
}

func TestAddressesAreValidated(t *testing.T) {
	t.Parallel()

	for _, address := range []string{
		"", "unix:", "unix://", "unix:///dir/", "relative.sock", "tcp://", "10.0.0.1:5000", "tcp://example.org:1", ":5000", "127.0.0.1",
		"http://127.0.0.1:5000", "127.0.0.1:", "0.0.0.0:5000",
	} {
		_, err := proxy.New(address)
		require.ErrorIs(t, err, socket.ErrAddress, "%q", address)
	}

	echo := &upstream{
		unary: func(_ context.Context, got *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
			return &grpc_testing.SimpleResponse{Payload: got.GetPayload()}, nil
		},
	}
	path := filepath.Join(t.TempDir(), "upstream.sock")
	serveUpstream(t, "unix", path, echo)

	_, tcp := serveUpstream(t, "tcp", "127.0.0.1:0", echo)
	_, port, err := net.SplitHostPort(tcp.String())
	require.NoError(t, err)

	for _, address := range []string{
		path, "unix:" + path, "unix://" + path, tcp.String(), "tcp://" + tcp.String(), "localhost:" + port,
	} {
		answer, err := through(t, address).UnaryCall(t.Context(), request("hello"))
		require.NoError(t, err, address)
		require.Equal(t, "hello", string(answer.GetPayload().GetBody()))
	}
}

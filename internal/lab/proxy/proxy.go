package proxy

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/socket"
)

const (
	// The server is on this machine, so reconnecting succeeds quickly or not at all.
	redialBaseDelay = 10 * time.Millisecond
	redialMaxDelay  = time.Second
	redialGrowth    = 1.6
	redialTimeout   = 5 * time.Second
)

// hopKey is the metadata in which each proxy of a call's way leaves its id.
const hopKey = "x-touchstone-proxy"

// Proxy forwards calls to one server.
type Proxy struct {
	conn *grpc.ClientConn
	// address is the server's, id this proxy's.
	address, id string
}

// New returns a proxy to an address: unix:///path, unix:path, a path, or tcp://host:port
// or host:port of this machine. It does not dial: without a listener calls fail with
// UNAVAILABLE. Errors: socket.ErrAddress.
func New(address string) (*Proxy, error) {
	network, target, err := socket.ParseAddress(address)
	if err != nil {
		return nil, err
	}

	conn, err := grpc.NewClient("passthrough:///"+target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// Neither gRPC's own resolving nor an HTTP proxy of the environment.
		grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, target string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, target)
		}),
		grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(Codec{}), grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)),
		// Retries are the caller's decision.
		grpc.WithDisableRetry(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: redialBaseDelay, MaxDelay: redialMaxDelay, Multiplier: redialGrowth},
			MinConnectTimeout: redialTimeout,
		}))
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", socket.ErrAddress, address, err)
	}

	return &Proxy{conn: conn, address: address, id: rand.Text()}, nil
}

// Close ends the connection; running calls fail.
func (p *Proxy) Close() error {
	if err := p.conn.Close(); err != nil {
		return fmt.Errorf("close the connection: %w", err)
	}

	return nil
}

// ServerOptions make a server that has no services a proxy.
func (p *Proxy) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(Codec{}),
		grpc.UnknownServiceHandler(func(_ any, caller grpc.ServerStream) error { return p.forward(caller) }),
		grpc.MaxRecvMsgSize(math.MaxInt32), grpc.MaxSendMsgSize(math.MaxInt32),
	}
}

// forward forwards one call. Every call is handled as a bidirectional stream, of which a
// unary call is a special case.
func (p *Proxy) forward(caller grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(caller)
	if !ok {
		return status.Error(codes.Internal, "the call has no method")
	}

	// Deadline and cancellation go along with the context, metadata does not.
	// gRPC itself leaves out what concerns one hop only.
	ctx, cancel := context.WithCancel(caller.Context())
	defer cancel()

	received, _ := metadata.FromIncomingContext(ctx)
	if slices.Contains(received.Get(hopKey), p.id) {
		return status.Errorf(codes.FailedPrecondition,
			"proxy-endpoint %s leads back to this proxy; name the socket of a driver instead", p.address)
	}

	received = received.Copy()
	received.Append(hopKey, p.id)

	server, err := p.conn.NewStream(metadata.NewOutgoingContext(ctx, received),
		&grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}

	go func() {
		if err := requests(caller, server); err != nil {
			cancel()
		}
	}()

	return responses(server, caller)
}

// requests forwards the caller's messages. It ends at the latest with the call; an
// error means that the caller has disconnected.
func requests(from grpc.ServerStream, to grpc.ClientStream) error {
	for {
		message := &frame{}

		switch err := from.RecvMsg(message); {
		case errors.Is(err, io.EOF):
			// It never fails: errors are returned with the response.
			_ = to.CloseSend()

			return nil
		case err != nil:
			return err
		}

		// Why the server does not want any more is in its answer.
		if err := to.SendMsg(message); err != nil {
			return nil //nolint:nilerr // see above
		}
	}
}

// responses passes on what the server sends, and returns its status.
//

func responses(from grpc.ClientStream, to grpc.ServerStream) error {
	// Forwarded before the first message: a stream may send its header long before it.
	header, err := from.Header()
	if err == nil && header != nil {
		if err := to.SendHeader(header); err != nil {
			return err
		}
	}

	for {
		message := &frame{}

		if err := from.RecvMsg(message); err != nil {
			to.SetTrailer(from.Trailer())

			if errors.Is(err, io.EOF) {
				return nil
			}

			return err
		}

		if err := to.SendMsg(message); err != nil {
			return err
		}
	}
}

package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// ObservationsVariable is the environment variable that names the directory where tests write what
// they have observed. Without it nothing is written.
const ObservationsVariable = "TOUCHSTONE_OBSERVATIONS"

// Observation is one thing that a call to a driver has shown, or that a test has found by other
// means. docs/spec/rows.tsv names observations.
type Observation struct {
	// RPC is the name of the method without its service.
	RPC string
	// Condition is what the request was: see conditions.go, or what a test declares with Exercise.
	// Several are joined by " + ".
	Condition string
	// Result is the code, or a property of the response: "has volume.volume_id".
	Result string
}

// String returns the form that rows have: "CreateVolume | name missing | InvalidArgument".
func (o Observation) String() string { return o.RPC + " | " + o.Condition + " | " + o.Result }

// Condition is what a request is said to exercise.
type Condition struct {
	Name string
	// Holds returns why a request does not meet the condition, nil if it does. Without a function it
	// is one that conditions has to find.
	Holds func(request proto.Message) error
}

type exercised struct{}

// Exercise declares conditions that the next calls with the context are made for, beyond those that
// every call is examined for. A call that does not meet them fails its test.
func Exercise(ctx context.Context, conditions ...Condition) context.Context {
	declared, _ := ctx.Value(exercised{}).([]Condition)

	return context.WithValue(ctx, exercised{}, append(slices.Clone(declared), conditions...))
}

// Shows declares that a test shows a property of an RPC that is not in a response: of the log, of
// files, of mounts. It counts if the test passes. Call it beside the assertion.
func Shows(tb testing.TB, rpc, condition, property string) {
	tb.Helper()
	record(tb, Observation{RPC: rpc, Condition: condition, Result: property})
}

// observations are those of the process, by test.
var observations = struct {
	sync.Mutex

	by map[testing.TB]map[Observation]bool
}{by: map[testing.TB]map[Observation]bool{}}

// record keeps observations until their test has passed.
//
//nolint:thelper // F.Helper panics within a fuzz target
func record(tb testing.TB, observed ...Observation) {
	directory := os.Getenv(ObservationsVariable)
	if directory == "" {
		return
	}

	observations.Lock()
	defer observations.Unlock()

	known := observations.by[tb]
	if known == nil {
		known = map[Observation]bool{}
		observations.by[tb] = known

		tb.Cleanup(func() { write(tb, directory) })
	}

	for _, each := range observed {
		known[each] = true
	}
}

// write appends the observations of a test that has passed to the file of the process.
func write(tb testing.TB, directory string) {
	tb.Helper()

	observations.Lock()
	defer observations.Unlock()

	found := slices.Collect(maps.Keys(observations.by[tb]))
	delete(observations.by, tb)

	if tb.Failed() {
		return
	}

	var text strings.Builder
	for _, each := range found {
		fmt.Fprintf(&text, "%s\t%s\n", each, tb.Name())
	}

	file, err := os.OpenFile(filepath.Join(directory, strconv.Itoa(os.Getpid())), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = file.WriteString(text.String())
		if ended := file.Close(); err == nil {
			err = ended
		}
	}

	if err != nil {
		tb.Errorf("write observations: %v", err)
	}
}

// Observe fails the test for each response that breaks a rule of the spec for all responses, the
// messages of a stream included, and records what its calls have shown. world is what is known of
// the driver from earlier calls; a driver that is started again keeps it.
func Observe(tb testing.TB, world *World) []grpc.DialOption {
	tb.Helper()

	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, request, answer any,
			conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
		) error {
			call := begin(tb, ctx, world, method, request)
			defer call.running()

			err := invoke(ctx, method, request, answer, conn, options...)
			call.message(answer, err)
			call.end(answer, err)

			return err
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, description *grpc.StreamDesc, conn *grpc.ClientConn, method string,
			streamer grpc.Streamer, options ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			stream, err := streamer(ctx, description, conn, method, options...)

			return &observedStream{ClientStream: stream, tb: tb, ctx: ctx, world: world, method: method}, err
		}),
	}
}

// call is a call that is being observed.
type call struct {
	tb         testing.TB
	world      *World
	method     string
	request    any
	conditions []string
	// running ends what is known of it while it runs.
	running func()
	// messages counts those of the response; block is the last block of a stream of them.
	messages int
	block    *csi.BlockMetadata
}

//nolint:thelper // a fuzz target calls it, in which no method of its F may be called
func begin(tb testing.TB, ctx context.Context, world *World, method string, request any) *call {
	c := &call{tb: tb, world: world, method: method, request: request, running: func() {}}

	message, ok := request.(proto.Message)
	if !ok || message.ProtoReflect().Descriptor().ParentFile().Package() != "csi.v1" {
		return c
	}

	c.conditions = world.conditions(method, message)
	c.running = world.begin(method, message)

	declared, _ := ctx.Value(exercised{}).([]Condition)
	for _, each := range declared {
		if each.Holds == nil {
			if !slices.Contains(c.conditions, each.Name) {
				tb.Errorf("%s does not exercise %q: it is %v", method, each.Name, c.conditions)
			}

			continue
		}

		if err := each.Holds(message); err != nil {
			tb.Errorf("%s does not exercise %q: %v", method, each.Name, err)
		}

		c.conditions = append(c.conditions, each.Name)
	}

	return c
}

func (c *call) rpc() string { return nameOf(c.method) }

// record records what the call has shown with all of its conditions together.
func (c *call) record(results ...string) {
	if len(c.conditions) == 0 {
		return
	}

	for _, each := range results {
		record(c.tb, Observation{RPC: c.rpc(), Condition: strings.Join(c.conditions, " + "), Result: each})
	}
}

// message checks one message of the response.
func (c *call) message(answer any, err error) {
	for _, problem := range Problems(c.request, answer, err) {
		c.tb.Errorf("%s: the response breaks CSI v1.13: %s", c.method, problem)
	}

	request, asked := c.request.(proto.Message)
	response, answered := answer.(proto.Message)

	if !asked || !answered || err != nil || len(c.conditions) == 0 {
		return
	}

	c.record(properties(request, response)...)
	c.record(advertisements(c.rpc(), response)...)

	c.messages++

	following, wrong := c.follows(response)
	c.record(following...)

	kept, broken := c.world.remembered(c.rpc(), request, response)
	c.record(kept...)

	for _, rule := range append(broken, wrong...) {
		c.tb.Errorf("%s: the response is not as earlier ones: %s", c.method, rule)
	}
}

// end records the code, and has the world learn of the call. Problems has failed a test whose error
// has no message, or details.
func (c *call) end(answer any, err error) {
	code := status.Code(err)
	c.record(code.String())

	if code != codes.OK {
		c.record("has status.message", "lacks status.details")

		if c.messages > 0 {
			c.record(code.String() + " after a message")
		}
	}

	request, ok := c.request.(proto.Message)
	if response, isMessage := answer.(proto.Message); ok && isMessage && code == codes.OK {
		c.world.learn(c.rpc(), request, response)
	}
}

// observedStream is a stream of responses that is being observed.
type observedStream struct {
	grpc.ClientStream

	tb     testing.TB
	ctx    context.Context //nolint:containedctx // of the call
	world  *World
	method string
	call   *call
}

// SendMsg implements grpc.ClientStream.
func (s *observedStream) SendMsg(request any) error {
	s.call = begin(s.tb, s.ctx, s.world, s.method, request)
	s.call.running() // when a stream ends is not known

	return s.ClientStream.SendMsg(request)
}

// RecvMsg implements grpc.ClientStream.
func (s *observedStream) RecvMsg(answer any) error {
	err := s.ClientStream.RecvMsg(answer)
	if s.call == nil {
		return err
	}

	switch {
	case err == nil:
		s.call.message(answer, nil)
	case errors.Is(err, io.EOF):
		s.call.end(answer, nil)
	default:
		s.call.message(answer, err)
		s.call.end(answer, err)
	}

	return err
}

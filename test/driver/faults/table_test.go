package faults_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/lab/faults"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// act is an act of a rule, and what a call with it has to do.
type act struct {
	name string
	// text is the act as YAML; %[1]s is a field of the response.
	text string
	try  func(t *testing.T, f *faulty, of method, request proto.Message)
}

// fails requires the code, and one hit.
func fails(code codes.Code) func(*testing.T, *faulty, method, proto.Message) {
	return func(t *testing.T, f *faulty, of method, request proto.Message) {
		_, err := f.call(t.Context(), of, request)
		harness.RequireCode(t, err, code)
		require.Equal(t, 1, f.status(t).Hits, "want: the rule is hit once")
	}
}

// succeeds requires that the call succeeds after the time, with one hit.
func succeeds(after time.Duration) func(*testing.T, *faulty, method, proto.Message) {
	return func(t *testing.T, f *faulty, of method, request proto.Message) {
		began := time.Now()
		_, err := f.call(t.Context(), of, request)
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(began), after, "want: the call is delayed")
		require.Equal(t, 1, f.status(t).Hits, "want: the rule is hit once")
	}
}

// hangs requires that the call has an effect and no response.
func hangs(t *testing.T, f *faulty, of method, request proto.Message) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	ended := make(chan error, 1)

	go func() {
		_, err := f.call(ctx, of, request)
		ended <- err
	}()

	f.until(t, "the hit", func(s faults.Status) bool { return s.Hits == 1 })
	cancel()
	harness.RequireCode(t, await.Receive(t, ended, "the call to end"), codes.Canceled)
}

// isHeld requires that the call waits until it is released.
func isHeld(t *testing.T, f *faulty, of method, request proto.Message) {
	ended := make(chan error, 1)

	go func() {
		_, err := f.call(t.Context(), of, request)
		ended <- err
	}()

	f.until(t, "the call to be held", func(s faults.Status) bool { return s.Holding == 1 })
	require.Empty(t, ended, "want: the held call has no answer")

	released, err := f.rules.Release(t.Context(), "here")
	require.NoError(t, err)
	require.Equal(t, 1, released, "want: one held call is released")
	require.NoError(t, await.Receive(t, ended, "the call to end"))
}

// changes requires that the answer differs from one without the rule.
func changes(t *testing.T, f *faulty, of method, request proto.Message) {
	altered, err := f.call(t.Context(), of, request)
	require.NoError(t, err)
	require.Equal(t, 1, f.status(t).Hits, "want: the rule is hit once")

	f.clear(t)

	plain, err := f.call(t.Context(), of, request)
	require.NoError(t, err)
	require.False(t, proto.Equal(plain, altered), "the response is not altered: %v", altered)
}

// vanishes requires that the call and further connections fail, and that the socket comes back.
func vanishes(t *testing.T, f *faulty, of method, request proto.Message) {
	_, err := f.call(t.Context(), of, request)
	harness.RequireCode(t, err, codes.Unavailable)
	require.Equal(t, 1, f.status(t).Hits, "want: the rule is hit once")
	f.clear(t)
	harness.AwaitReady(t, f.co)
}

func acts() []act {
	return []act{
		{"before", "{before: {code: RESOURCE_EXHAUSTED}}", fails(codes.ResourceExhausted)},
		{"after", "{after: {code: INTERNAL}}", fails(codes.Internal)},
		{"unimplemented", "{unimplemented: true}", fails(codes.Unimplemented)},
		{"require_secrets", "{require_secrets: [absent]}", fails(codes.Unauthenticated)},
		{"delay before", "{delay: {before: 20ms}}", succeeds(20 * time.Millisecond)},
		{"delay after", "{delay: {after: 20ms}}", succeeds(20 * time.Millisecond)},
		{"hold", "{hold: here}", isHeld},
		{"lose hang", "{lose: hang}", hangs},
		{"lose reset", "{lose: reset}", fails(codes.Unavailable)},
		{"cut", "{cut: 0}", fails(codes.Unavailable)},
		{"socket", "{socket: {vanish: 20ms}}", vanishes},
		{"patch unset", "{patch: del(.%[1]s)}", changes},
		{
			"patch repeat", `{patch: '.%[1]s |= if type == "string" then . * 300 elif type == "array" then [range(300) as $i | .[]] ` +
				`else with_entries(range(300) as $i | .key += "-\($i)") end'}`, changes,
		},
		{"lists duplicate", "{patch: '.%[1]s += .%[1]s[:1]'}", changes},
		{"lists omit", "{patch: 'del(.%[1]s[0])'}", changes},
		{"lists endless", "{endless: true}", changes},
		{"lists expire", `{patch: '.next_token = "expired"'}`, changes},
		{"partial", "{patch: '.%[1]s |= .[:0]'}", changes},
		{"capabilities", `{patch: 'del(.capabilities[] | select(any(..; . == "%[1]s")))'}`, changes},
		{"another", `{patch: 'if $request.name and $previous then .volume.volume_id += "-\($hit)" else . end'}`, func(t *testing.T, f *faulty, of method, request proto.Message) {
			first, err := f.call(t.Context(), of, request)
			require.NoError(t, err)

			second, err := f.call(t.Context(), of, request)
			require.NoError(t, err)
			require.NotEqual(t, first.(*csi.CreateVolumeResponse).GetVolume().GetVolumeId(), second.(*csi.CreateVolumeResponse).GetVolume().GetVolumeId(), "want: the second call makes another volume")
		}},
	}
}

// fieldFor returns a path of the answer that the act can change, "" for none.
func fieldFor(of act, answer protoreflect.Message) string {
	found := ""

	if strings.HasPrefix(of.name, "lists") || of.name == "partial" {
		if answer.Descriptor().Fields().ByName("group_snapshot") != nil {
			return "group_snapshot.snapshots"
		}

		return "entries"
	}

	answer.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		name := string(field.Name())

		switch {
		case of.name == "capabilities" && name == "capabilities":
			found = capabilityName(value.List().Get(0).Message())
		case of.name == "capabilities":
		case of.name == "patch unset":
			found = name
		case field.IsList() || field.IsMap() || field.Kind() == protoreflect.StringKind:
			found = name
		case field.Kind() == protoreflect.MessageKind:
			if inner := fieldFor(of, value.Message()); inner != "" {
				found = name + "." + inner
			}
		}

		return found == ""
	})

	return found
}

func capabilityName(capability protoreflect.Message) (name string) {
	capability.Range(func(_ protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		kind := value.Message().Descriptor().Fields().ByName("type")
		name = string(kind.Enum().Values().ByNumber(value.Message().Get(kind).Enum()).Name())

		return false
	})

	return name
}

// TestEachActOnEachRPC tries each act on each RPC to which it applies. An act does not apply where
// Parse refuses it.
func TestEachActOnEachRPC(t *testing.T) {
	namespace.NeedRoot(t)

	f := start(t)
	w := newWorld(t, f)
	count := map[string]int{}

	for _, of := range allMethods() {
		request := w.request(of.name)
		plain, err := f.call(t.Context(), of, request)
		require.NoError(t, err, of.name)

		for _, each := range acts() {
			text := each.text
			if strings.Contains(text, "%[1]s") {
				field := fieldFor(each, plain.ProtoReflect())
				if field == "" {
					continue
				}

				text = fmt.Sprintf(text, field)
			}

			rule := fmt.Sprintf("{match: {method: %s}, act: %s}", of.name, text)
			if _, err := faults.Parse([]byte(rule)); err != nil {
				continue
			}

			if isEmptyList(of, plain, each.name) {
				continue
			}

			count[each.name]++

			t.Run(of.name+"/"+each.name, func(t *testing.T) {
				f.add(t, rule)
				each.try(t, f, of, request)
			})
		}
	}

	total := 0
	for _, each := range acts() {
		t.Logf("%-16s on %d RPCs", each.name, count[each.name])
		total += count[each.name]
	}

	t.Logf("%d acts on %d RPCs: %d combinations", len(acts()), len(allMethods()), total)

	for _, name := range []string{"before", "after", "unimplemented", "delay before", "delay after", "hold", "lose hang", "lose reset", "socket"} {
		require.Equal(t, len(allMethods()), count[name], name)
	}
}

// isEmptyList reports whether there is nothing to leave out of a list or to repeat.
func isEmptyList(of method, answer proto.Message, act string) bool {
	if act != "lists duplicate" && act != "lists omit" && act != "partial" {
		return false
	}

	field := of.of.Output().Fields().ByName("entries")

	return field != nil && answer.ProtoReflect().Get(field).List().Len() == 0
}

// TestEachCodeOnEachRPC lets each RPC fail with each code, before the effect.
func TestEachCodeOnEachRPC(t *testing.T) {
	f, count := start(t), 0

	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		f.add(t, fmt.Sprintf("{act: {before: {code: %s, message: on command}}}", rpc.CodeName(code)))

		for _, of := range allMethods() {
			_, err := f.call(t.Context(), of, newMessage(of.of.Input()))
			rpccode.Require(t, err, code, of.name)
			require.Equal(t, "on command", status.Convert(err).Message())

			count++
		}

		f.clear(t)
	}

	t.Logf("%d combinations of a code and an RPC", count)
}

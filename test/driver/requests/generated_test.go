package requests_test

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// derived is a complete request in which one field was changed.
type derived struct {
	request

	field conformance.Field
	// what is wrong with the field.
	what string
	// words are those that the refusal has besides the field's.
	words   []string
	options []grpc.CallOption
}

// derive returns a derived request.
func (r request) derive(field conformance.Field, what string, change func(message proto.Message), words ...string) derived {
	r.message = proto.Clone(r.message)
	change(r.message)

	return derived{request: r, field: field, what: what, words: words}
}

// These are found by examining a request. What else is wrong with a field is declared.
const (
	missing   = "missing"
	overLimit = "over its limit"
)

// call makes the call. The test fails if the message is the complete one.
func (d derived) call(t *testing.T, ctx context.Context, f *fixture) error {
	t.Helper()

	complete := f.complete()[d.method.Name()]
	require.False(t, proto.Equal(d.message, complete), "%s %s: the request is the complete one", d.name(), d.field.Path)

	if d.what != missing && d.what != overLimit {
		ctx = conformance.Exercise(ctx, conformance.Where(d.field.Condition()+" "+d.what, func(message proto.Message) bool {
			return !proto.Equal(message, complete)
		}))
	}

	return conformance.Call(ctx, f.Conn(), d.method, d.message, d.options...)
}

// each calls visit with the fields of all requests.
func (f *fixture) each(t *testing.T, visit func(r request, field conformance.Field) []derived) []derived {
	t.Helper()

	var found []derived

	for _, r := range f.requests(t) {
		for _, field := range conformance.FieldsOf(r.method.Input()) {
			found = append(found, visit(r, field)...)
		}
	}

	require.NotEmpty(t, found, "want: there are requests to test")

	return found
}

// refuse makes the calls. Each is INVALID_ARGUMENT with a message that has the field, and changes
// nothing.
func (f *fixture) refuse(t *testing.T, calls []derived) {
	t.Helper()

	before := f.everything(t)

	for _, each := range calls {
		t.Run(each.name()+" "+each.field.Path+" "+each.what, func(t *testing.T) {
			if each.name() == "NodeExpandVolume" && outermost(each.field) == "volume_capability" {
				namespace.NeedRoot(t) // it is compared with that of the staged volume
			}

			err := each.call(t, t.Context(), f)
			harness.RequireCode(t, err, codes.InvalidArgument, append(each.words, outermost(each.field))...)
			require.Contains(t, asWords(status.Convert(err).Message()), asWords(string(each.field.Name())))
			require.Less(t, len(status.Convert(err).Message()), 300, "the value is repeated")
		})
	}

	require.Equal(t, before, f.everything(t))
}

// outermost returns the name of the request's field in which a field is.
func outermost(field conformance.Field) string {
	return field.Path[:len(field.Path)-len(strings.TrimLeft(field.Path, "abcdefghijklmnopqrstuvwxyz_"))]
}

func asWords(text string) string { return strings.ReplaceAll(text, "_", " ") }

// everything returns what the driver has, and the mounts.
func (f *fixture) everything(t *testing.T) map[string]string {
	t.Helper()

	found := harness.Everything(t, f.Driver)

	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(f.Root))
	require.NoError(t, err)

	for _, each := range mounts {
		found["mounted "+each.Mountpoint] = each.Options
	}

	return found
}

// TestMissingFieldsAreRefused: each field that is REQUIRED is left out, also of the messages in a
// request.
func TestMissingFieldsAreRefused(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	f.refuse(t, f.withMissing(t))
}

func (f *fixture) withMissing(t *testing.T) []derived {
	t.Helper()

	return f.each(t, func(r request, field conformance.Field) []derived {
		if !field.IsRequired() {
			return nil
		}

		return []derived{r.derive(field, missing, func(message proto.Message) { field.In(message).Clear(field.FieldDescriptor) })}
	})
}

// TestOversizedFieldsAreRefused: each string, list and map is as large as the spec allows, and one
// byte larger. The former is accepted, or refused for what it is.
func TestOversizedFieldsAreRefused(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	f.refuse(t, f.sized(t, overLimit, 1))

	for _, each := range f.sized(t, "as large as allowed", 0) {
		t.Run(each.name()+" "+each.field.Path+" "+each.what, func(t *testing.T) {
			if each.name() == "NodeStageVolume" {
				namespace.NeedRoot(t) // it is accepted, and mounts the volume
			}

			err := each.call(t, t.Context(), f)
			require.NotContains(t, fmt.Sprint(err), "the CSI spec allows")
			require.NotContains(t, []codes.Code{codes.Internal, codes.Unknown}, status.Code(err), "%v", err)
		})
	}
}

// sized returns requests with fields of more bytes than the spec allows.
func (f *fixture) sized(t *testing.T, what string, more int) []derived {
	t.Helper()

	return f.each(t, func(r request, field conformance.Field) []derived {
		if !field.IsText() {
			return nil
		}

		size := field.Limit() + more
		if field.IsMap() {
			size-- // the key
		}

		return []derived{r.derive(field, what, func(message proto.Message) {
			field.SetText(message, "k", strings.Repeat("x", size))
		}, "the CSI spec allows "+strconv.Itoa(field.Limit()))}
	})
}

// TestUnknownEnumValuesAreRefused: no version of the spec has them, or only a later one.
func TestUnknownEnumValuesAreRefused(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	f.refuse(t, f.withUnknownEnums(t))
}

func (f *fixture) withUnknownEnums(t *testing.T) []derived {
	t.Helper()

	return f.each(t, func(r request, field conformance.Field) []derived {
		var found []derived

		if field.Kind() == protoreflect.EnumKind {
			for _, number := range []protoreflect.EnumNumber{-1, 99} {
				found = append(found, r.derive(field, fmt.Sprintf("unknown %d", number), func(message proto.Message) {
					field.In(message).Set(field.FieldDescriptor, protoreflect.ValueOfEnum(number))
				}))
			}
		}

		return found
	})
}

// altered encodes messages and alters what is sent, as no proper client would.
type altered struct {
	encoding.CodecV2

	alter func(encoded []byte) []byte
}

// sending returns the option of a call whose message is altered.
func sending(alter func(encoded []byte) []byte) grpc.CallOption {
	return grpc.ForceCodecV2(altered{encoding.GetCodecV2(protocodec.Name), alter})
}

// Marshal implements encoding.CodecV2.
func (c altered) Marshal(message any) (mem.BufferSlice, error) {
	encoded, err := c.CodecV2.Marshal(message)
	if err != nil {
		return nil, err
	}

	return mem.BufferSlice{mem.SliceBuffer(c.alter(encoded.Materialize()))}, nil
}

// TestInvalidUTF8IsRefused in each string, also in those of lists and in keys and values of maps.
func TestInvalidUTF8IsRefused(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	f.refuse(t, f.withBrokenText(t))
}

func (f *fixture) withBrokenText(t *testing.T) []derived {
	t.Helper()

	const replaced = "replaced"

	breakText := sending(func(encoded []byte) []byte {
		return bytes.Replace(encoded, []byte(replaced), []byte("a\xff\xfe\x80\xc3(z\xff"), 1)
	})

	return f.each(t, func(r request, field conformance.Field) []derived {
		var found []derived

		add := func(what, key, value string) {
			call := r.derive(field, what, func(message proto.Message) { field.SetText(message, key, value) }, "UTF-8")
			call.options = []grpc.CallOption{breakText}
			found = append(found, call)
		}

		if field.IsText() {
			add("not UTF-8", "k", replaced)
		}

		if field.IsText() && field.IsMap() {
			add("with a key that is not UTF-8", replaced, "v")
		}

		return found
	})
}

// TestTruncatedRequestsAreRefused: they lack their last byte.
func TestTruncatedRequestsAreRefused(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	before := f.everything(t)

	for _, each := range f.requests(t) {
		t.Run(each.name(), func(t *testing.T) {
			truncated := sending(func(encoded []byte) []byte {
				if len(encoded) == 0 {
					return []byte{0x0a} // the begin of a field
				}

				return encoded[:len(encoded)-1]
			})
			ctx := conformance.Exercise(t.Context(), conformance.Where("truncated", func(proto.Message) bool { return true }))
			err := conformance.Call(ctx, f.Conn(), each.method, each.message, truncated)
			harness.RequireCode(t, err, codes.InvalidArgument, "cannot be read")
			conformance.Shows(t, each.name(), "a message that cannot be decoded", codes.InvalidArgument.String())
		})
	}

	require.Equal(t, before, f.everything(t))
}

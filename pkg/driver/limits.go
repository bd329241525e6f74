package driver

import (
	"fmt"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// The size limits of the CSI spec ("Size Limits", and the fields that override
// them), in bytes.
const (
	maxString = 128
	maxMap    = 4096
	// maxFlags is for all mount flags of a capability together.
	maxFlags = 4096
	// maxPath is Linux' PATH_MAX: paths are as long as the system allows.
	maxPath = 4096
)

// limits refuses requests with fields larger than the spec allows, or with a NUL. The
// fields of a message type are determined once; a check then reads only those that
// are set: 2 µs for a NodePublishVolume request.
type limits struct {
	shapes sync.Map // protoreflect.MessageDescriptor → *shape
}

type shape struct{ rules []rule }

// rule is what holds for one field.
type rule struct {
	field protoreflect.FieldDescriptor
	kind  kind
	bytes int
	// binary lets a NUL pass: a secret is the CO's, byte for byte.
	binary bool
	nested *shape
}

type kind int

const (
	oneString kind = iota
	eachString
	stringsTogether
	stringMap
	oneMessage
	eachMessage
)

// check returns an INVALID_ARGUMENT status that names the field and its limit.
// Values are never repeated: they are too long, or may be secret.
func (l *limits) check(message proto.Message) error {
	reflected := message.ProtoReflect()
	if found := l.shape(reflected.Descriptor()).check(reflected); found != nil {
		return status.Error(codes.InvalidArgument, found.text())
	}

	return nil
}

func (l *limits) shape(descriptor protoreflect.MessageDescriptor) *shape {
	if known, ok := l.shapes.Load(descriptor); ok {
		if s, ok := known.(*shape); ok {
			return s
		}
	}

	made := shapeOf(descriptor, map[protoreflect.FullName]*shape{})
	l.shapes.Store(descriptor, made)

	return made
}

func shapeOf(descriptor protoreflect.MessageDescriptor, known map[protoreflect.FullName]*shape) *shape {
	if made, ok := known[descriptor.FullName()]; ok {
		return made
	}

	made := &shape{}
	known[descriptor.FullName()] = made // before its fields: a message may contain itself

	fields := descriptor.Fields()
	for i := range fields.Len() {
		if r, ok := ruleOf(fields.Get(i), known); ok {
			made.rules = append(made.rules, r)
		}
	}

	return made
}

func ruleOf(field protoreflect.FieldDescriptor, known map[protoreflect.FullName]*shape) (rule, bool) {
	secret, _ := proto.GetExtension(field.Options(), csi.E_CsiSecret).(bool)
	r := rule{field: field, binary: secret}

	switch {
	case field.IsMap():
		r.kind, r.bytes = stringMap, maxMap
		text := field.MapKey().Kind() == protoreflect.StringKind && field.MapValue().Kind() == protoreflect.StringKind

		return r, text
	case field.Kind() == protoreflect.StringKind && field.IsList():
		r.kind, r.bytes = eachString, maxString
		if field.Name() == "mount_flags" {
			r.kind, r.bytes = stringsTogether, maxFlags
		}

		return r, true
	case field.Kind() == protoreflect.StringKind:
		r.kind, r.bytes = oneString, limitOf(field.Name())

		return r, true
	case field.Kind() == protoreflect.MessageKind:
		r.kind = oneMessage
		if field.IsList() {
			r.kind = eachMessage
		}

		r.nested = shapeOf(field.Message(), known)

		return r, true
	default:
		return rule{}, false
	}
}

func limitOf(field protoreflect.Name) int {
	switch field {
	case "target_path", "staging_target_path", "volume_path", "volume_publish_path":
		return maxPath
	case "node_id":
		return maxNodeID
	default:
		return maxString
	}
}

func (s *shape) check(message protoreflect.Message) *violation {
	for i := range s.rules {
		r := &s.rules[i]
		if !message.Has(r.field) {
			continue
		}

		if found := r.check(message.Get(r.field)); found != nil {
			return found
		}
	}

	return nil
}

func (r *rule) check(value protoreflect.Value) *violation {
	switch r.kind {
	case oneString:
		return r.text(value.String(), 0, "")
	case eachString, stringsTogether:
		return r.list(value.List())
	case stringMap:
		return r.pairs(value.Map())
	case oneMessage:
		return r.nested.check(value.Message()).in(r.field.TextName())
	case eachMessage:
		list := value.List()
		for i := range list.Len() {
			if found := r.nested.check(list.Get(i).Message()); found != nil {
				return found.in(fmt.Sprintf("%s[%d]", r.field.TextName(), i))
			}
		}
	}

	return nil
}

// text checks one more string, after those that have taken so many bytes.
func (r *rule) text(text string, before int, what string) *violation {
	total := before + len(text)

	switch {
	case total > r.bytes:
		return &violation{path: r.field.TextName(), bytes: total, limit: r.bytes}
	case !r.binary && strings.IndexByte(text, 0) >= 0:
		return &violation{path: r.field.TextName(), problem: what + "holds a NUL byte"}
	default:
		return nil
	}
}

func (r *rule) list(list protoreflect.List) *violation {
	total := 0

	for i := range list.Len() {
		text := list.Get(i).String()
		if found := r.text(text, total, ""); found != nil {
			return found
		}

		if r.kind == stringsTogether {
			total += len(text)
		}
	}

	return nil
}

func (r *rule) pairs(pairs protoreflect.Map) *violation {
	var (
		total int
		found *violation
	)

	pairs.Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
		if found = r.text(key.String(), total, "a key "); found != nil {
			return false
		}

		total += len(key.String())
		if found = r.text(value.String(), total, "a value "); found != nil {
			return false
		}

		total += len(value.String())

		return true
	})

	return found
}

// violation describes an invalid field. bytes is 0 if its size is not the cause.
type violation struct {
	path         string
	problem      string
	bytes, limit int
}

func (v *violation) in(parent string) *violation {
	if v != nil {
		v.path = parent + "." + v.path
	}

	return v
}

func (v *violation) text() string {
	if v.bytes > 0 {
		return fmt.Sprintf("%s has %d bytes or more; the CSI spec allows %d", v.path, v.bytes, v.limit)
	}

	return v.path + " " + v.problem
}

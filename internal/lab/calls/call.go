package calls

import (
	"encoding/json"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/lab/jq"
)

// Call is a call that has ended.
type Call struct {
	// Number is that of the call in the driver's log. Numbers ascend in the order in which the
	// calls began, and begin at 1 with each start of the driver.
	Number uint64 `json:"call"`
	// Method is the full name, such as /csi.v1.Node/NodeStageVolume.
	Method  string    `json:"method"`
	Started time.Time `json:"started"`
	// Took is the duration in seconds.
	Took float64 `json:"took"`
	// Deadline is the caller's, and Timeout how many seconds after the start it is.
	Deadline *time.Time `json:"deadline,omitempty"`
	Timeout  float64    `json:"timeout,omitempty"`
	// CallerGone reports that the caller had given up, or its deadline had passed, before the
	// call ended: it has not seen this response.
	CallerGone bool                `json:"caller_gone,omitempty"`
	Metadata   map[string][]string `json:"metadata,omitempty"`
	// Code is the status as the CSI spec writes it, such as NOT_FOUND.
	Code    string `json:"code"`
	Message string `json:"message,omitempty"`
	// Objects are the ids and names in the request and the response.
	Objects []string        `json:"objects,omitempty"`
	Request json.RawMessage `json:"request,omitempty"`
	// Response is absent where the call failed, and for a stream, which has Messages: at most
	// MaxMessages of them. Omitted is how many messages are left out.
	Response json.RawMessage   `json:"response,omitempty"`
	Messages []json.RawMessage `json:"messages,omitempty"`
	Omitted  int               `json:"omitted,omitempty"`

	// name and id are those of the object that a creation returned; one is empty in other calls.
	name, id string
}

// MaxMessages is how many messages of a stream are recorded.
const MaxMessages = 100

// RPC is the name of the call in the spec.
func (c *Call) RPC() string { return path.Base(c.Method) }

// objectFields are the fields with the name or id of an object that a call is about.
func objectFields() []protoreflect.Name {
	return []protoreflect.Name{
		"name", "volume_id", "snapshot_id", "group_snapshot_id", "source_volume_id", "source_volume_ids", "snapshot_ids",
		"base_snapshot_id", "target_snapshot_id",
	}
}

// objects appends the ids and names in a request or in the response to a creation.
func objects(found []string, message any) []string {
	typed, ok := message.(proto.Message)
	if !ok {
		return found
	}

	reflection := typed.ProtoReflect()
	found = appendObjects(found, typed)

	if creates, ok := message.(*csi.CreateVolumeRequest); ok {
		source := creates.GetVolumeContentSource()
		found = appendObjects(appendObjects(found, source.GetVolume()), source.GetSnapshot())
	}

	// The object that a creation returns.
	for _, name := range []protoreflect.Name{"volume", "snapshot", "group_snapshot"} {
		field := reflection.Descriptor().Fields().ByName(name)
		if field != nil && field.Kind() == protoreflect.MessageKind && !field.IsList() && reflection.Has(field) {
			found = appendObjects(found, reflection.Get(field).Message().Interface())
		}
	}

	return found
}

// nameIn returns the name in the request of a creation, "" for others.
func nameIn(request any) string {
	if named, ok := request.(interface{ GetName() string }); ok {
		return named.GetName()
	}

	return ""
}

func appendObjects(found []string, message proto.Message) []string {
	for _, name := range objectFields() {
		for _, text := range rpc.Texts(message, name) {
			found = appendNew(found, text)
		}
	}

	return found
}

func appendNew(found []string, text string) []string {
	if text == "" || slices.Contains(found, text) {
		return found
	}

	return append(found, strings.ToValidUTF8(text, "�"))
}

// Input returns the call as the input of a jq filter: its JSON, but request, response and messages as fault
// rules have them, with numbers and defaults (package jq).
func (c *Call) Input() (any, error) {
	input, err := jq.FromJSON(c)

	fields, ok := input.(map[string]any)
	if err != nil || !ok {
		return nil, err
	}

	service, method, _ := strings.Cut(strings.TrimPrefix(c.Method, "/"), "/")

	found, _ := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service + "." + method))

	of, known := found.(protoreflect.MethodDescriptor)
	if !known {
		return input, nil
	}

	if c.Request != nil {
		fields["request"] = inputOf(of.Input(), c.Request)
	}

	if c.Response != nil {
		fields["response"] = inputOf(of.Output(), c.Response)
	}

	for i, message := range c.Messages {
		fields["messages"].([]any)[i] = inputOf(of.Output(), message) //nolint:forcetypeassert // of the same call
	}

	return input, nil
}

// inputOf reads a recorded message; what cannot be read is its text.
func inputOf(of protoreflect.MessageDescriptor, text json.RawMessage) any {
	found, err := protoregistry.GlobalTypes.FindMessageByName(of.FullName())
	if err != nil {
		return string(text)
	}

	message := found.New().Interface()
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, message); err != nil {
		return string(text)
	}

	return jq.FromMessage(message)
}

func knownCode(text string) bool {
	for _, name := range code.Code_name {
		if plain(name) == plain(text) {
			return true
		}
	}

	return false
}

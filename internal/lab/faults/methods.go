package faults

import (
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// methods are the RPCs of CSI by their name, which no two services share, and rpcs are their names in
// the order of the spec.
var methods, rpcs = csiMethods()

func csiMethods() (map[string]protoreflect.MethodDescriptor, []string) {
	var (
		found    = map[string]protoreflect.MethodDescriptor{}
		names    []string
		services = (&csi.ProbeRequest{}).ProtoReflect().Descriptor().ParentFile().Services()
	)

	for i := range services.Len() {
		service := services.Get(i)
		for j := range service.Methods().Len() {
			method := service.Methods().Get(j)
			name := string(method.Name())
			found[name], names = method, append(names, name)
		}
	}

	return found, names
}

// methodOf returns the RPC of a call, nil for one of another service than CSI's.
func methodOf(fullMethod string) protoreflect.MethodDescriptor {
	service, name, _ := strings.Cut(strings.TrimPrefix(fullMethod, "/"), "/")
	if !strings.HasPrefix(service, "csi.v1.") {
		return nil
	}

	return methods[name]
}

func isOfNode(method protoreflect.MethodDescriptor) bool { return method.Parent().Name() == "Node" }

// newMessage returns an empty message of a type of CSI.
func newMessage(of protoreflect.MessageDescriptor) protoreflect.Message {
	found, err := protoregistry.GlobalTypes.FindMessageByName(of.FullName())
	if err != nil {
		// The generated code of package csi registers all of its messages.
		panic(err)
	}

	return found.New()
}

// fieldOf returns a field of a message by its name, nil if it has none.
func fieldOf(message proto.Message, name protoreflect.Name) protoreflect.FieldDescriptor {
	return message.ProtoReflect().Descriptor().Fields().ByName(name)
}

package conformance

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// capability is the name of one.
type capability struct {
	name       string
	advertised bool
}

// asks are the RPCs that return the capabilities of the plugin, "", or of a service.
var asks = map[string]string{
	"GetPluginCapabilities": "", "ControllerGetCapabilities": "Controller", "GroupControllerGetCapabilities": "GroupController",
	"NodeGetCapabilities": "Node",
}

// learnCapabilities remembers what is advertised.
func (w *World) learnCapabilities(rpc string, response proto.Message) {
	if service, ok := asks[rpc]; ok {
		w.advertised[service] = capabilitiesIn(response.ProtoReflect())
	}
}

// capabilities returns what the plugin and the service of a method advertise, and what they do not,
// as far as it is known.
func (w *World) capabilities(method string) []string {
	service := method[strings.LastIndex(method, ".")+1:]
	service, _, _ = strings.Cut(service, "/")

	var found []string

	known := slices.Clone(w.advertised[""])
	if service != "" {
		known = append(known, w.advertised[service]...)
	}

	for _, each := range known {
		if each.advertised {
			found = append(found, "with "+each.name)
		} else {
			found = append(found, "without "+each.name)
		}
	}

	return found
}

// capabilitiesIn returns the capabilities of a response, and those that it could have.
func capabilitiesIn(response protoreflect.Message) []capability {
	var found []capability

	values(response, func(name string) { found = append(found, capability{name, true}) })
	possible(response.Descriptor(), func(name string) {
		if !slices.Contains(found, capability{name, true}) {
			found = append(found, capability{name, false})
		}
	})

	return found
}

// values calls do for each value of an enum in a message. A number that the spec has reserved has
// no name.
func values(message protoreflect.Message, do func(name string)) {
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if field.Kind() == protoreflect.EnumKind && !field.IsList() {
			if known := field.Enum().Values().ByNumber(value.Enum()); known != nil {
				do(string(known.Name()))
			}
		}

		return true
	})
	within(message, func(_ string, inner protoreflect.Message) { values(inner, do) })
}

// possible calls do for each value that an enum in a message can have, other than UNKNOWN.
func possible(message protoreflect.MessageDescriptor, do func(name string)) {
	for i := range message.Fields().Len() {
		field := message.Fields().Get(i)

		if inner := field.Message(); inner != nil {
			possible(inner, do)
		}

		if enum := field.Enum(); enum != nil {
			for j := range enum.Values().Len() {
				if each := enum.Values().Get(j); each.Number() != 0 {
					do(string(each.Name()))
				}
			}
		}
	}
}

// advertisements returns what a response of capabilities has: "advertises C" and "does not advertise C".
func advertisements(rpc string, response proto.Message) []string {
	if _, ok := asks[rpc]; !ok {
		return nil
	}

	var found []string

	for _, each := range capabilitiesIn(response.ProtoReflect()) {
		if each.advertised {
			found = append(found, "advertises "+each.name)
		} else {
			found = append(found, "does not advertise "+each.name)
		}
	}

	return found
}

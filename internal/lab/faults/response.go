package faults

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// endlessToken is the prefix of the tokens that the injector has made. The driver's own token follows.
const endlessToken = "fault-endless:"

// restoreToken gives the driver its own token back.
func restoreToken(request proto.Message) proto.Message {
	field := fieldOf(request, "starting_token")
	if field == nil {
		return request
	}

	own, ok := strings.CutPrefix(request.ProtoReflect().Get(field).String(), endlessToken)
	if !ok {
		return request
	}

	restored := proto.Clone(request)
	restored.ProtoReflect().Set(field, protoreflect.ValueOfString(own))

	return restored
}

// alter returns the response as the hits change it. The response itself is not changed, since operations
// share it between the calls that joined them.
func (i *Injector) alter(
	ctx context.Context, hits []hit, method protoreflect.MethodDescriptor, request, response proto.Message,
) (proto.Message, error) {
	previous := i.remember(method, request, response)

	for _, each := range hits {
		if !each.Act.Patch.IsZero() {
			patched, err := each.Act.Patch.patched(ctx, response, request, previous, each.number)
			if err != nil {
				return nil, status.Errorf(codes.Internal, "fault rule %s: %v", each.Name, err)
			}

			response = patched
		}

		if each.Act.Endless {
			response = endless(request, response)
		}
	}

	return response, nil
}

// endless returns a page that names a next one, which is the same again after the last.
func endless(request, response proto.Message) proto.Message {
	altered := proto.Clone(response)
	message, field := altered.ProtoReflect(), fieldOf(response, "next_token")

	token := message.Get(field).String()
	if token == "" {
		token = request.ProtoReflect().Get(fieldOf(request, "starting_token")).String()
	}

	message.Set(field, protoreflect.ValueOfString(endlessToken+token))

	return altered
}

// remember stores the response while a rule needs the previous one, and returns that of the same method about
// the same objects, nil for the first.
func (i *Injector) remember(method protoreflect.MethodDescriptor, request, response proto.Message) proto.Message {
	i.mu.Lock()
	defer i.mu.Unlock()

	if !slices.ContainsFunc(i.rules.active, func(a *active) bool { return a.Act.Patch.usesPrevious() }) {
		return nil
	}

	objects := []string{string(method.Name())}
	for _, kind := range []string{kindVolume, kindSnapshot, kindGroup} {
		objects = append(objects, strings.Join(subjects(method, request, kind), ","))
	}

	key := strings.Join(objects, " ")
	previous := i.previous.Get(key)
	i.previous.Put(key, response)

	return previous
}

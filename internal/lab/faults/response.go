package faults

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// The prefixes of tokens that the injector has made. The driver's own token follows.
const (
	endlessToken = "fault-endless:"
	expiredToken = "fault-expired:"
)

// restoreToken gives the driver its own token back, and refuses one that a rule let expire.
func restoreToken(request proto.Message) (proto.Message, error) {
	field := fieldOf(request, "starting_token")
	if field == nil {
		return request, nil
	}

	token := request.ProtoReflect().Get(field).String()

	if strings.HasPrefix(token, expiredToken) {
		return nil, status.Error(codes.Aborted, "starting_token: it has expired; begin with the first page")
	}

	own, ok := strings.CutPrefix(token, endlessToken)
	if !ok {
		return request, nil
	}

	restored := proto.Clone(request)
	restored.ProtoReflect().Set(field, protoreflect.ValueOfString(own))

	return restored, nil
}

// alter returns the response as the hits change it. The response itself is not changed.
func (i *Injector) alter(hits []hit, method protoreflect.MethodDescriptor, request, response proto.Message) proto.Message {
	repeated, previous := i.remember(hits, method, request, response)
	if len(hits) == 0 {
		return response
	}

	altered := proto.Clone(response)

	for _, each := range hits {
		act := &each.Act
		message := altered.ProtoReflect()

		for _, patch := range act.Patch {
			patch.apply(message, each.number, previous)
		}

		if act.Lists != nil {
			act.Lists.apply(message, request)
		}

		if act.Partial != nil {
			keep(message, *act.Partial)
		}

		if act.Capabilities != nil && (!act.Capabilities.Alternate || each.number%2 == 0) {
			act.Capabilities.apply(message)
		}

		if created, ok := altered.(*csi.CreateVolumeResponse); ok && act.Another != nil && repeated {
			act.Another.apply(created, each.number)
		}
	}

	return altered
}

// remember stores what later hits compare with, while a rule needs it: the names of created volumes,
// and the responses. It returns whether a volume of that name was created before, and the previous
// response about the same object.
func (i *Injector) remember(
	hits []hit, method protoreflect.MethodDescriptor, request, response proto.Message,
) (repeated bool, previous proto.Message) {
	i.mu.Lock()
	defer i.mu.Unlock()

	if len(i.rules) == 0 && len(hits) == 0 {
		return false, nil
	}

	if creates, ok := request.(*csi.CreateVolumeRequest); ok {
		repeated = i.created.Get(creates.GetName())
		i.created.Put(creates.GetName(), true)
	}

	if !slices.ContainsFunc(i.rules, (*active).needsPrevious) {
		return repeated, nil
	}

	objects := []string{string(method.Name())}
	for _, kind := range []string{kindVolume, kindSnapshot, kindGroup} {
		objects = append(objects, strings.Join(subjects(method, request, kind), ","))
	}

	key := strings.Join(objects, " ")

	previous = i.previous.Get(key)
	i.previous.Put(key, response)

	return repeated, previous
}

func (a *active) needsPrevious() bool {
	return slices.ContainsFunc(a.Act.Patch, func(p Patch) bool { return p.Stale })
}

// apply changes the field. Paths and values were checked by Parse.
func (p Patch) apply(in protoreflect.Message, number int, previous proto.Message) {
	at, _ := p.Path.resolve(in.Descriptor())

	given := p.Value
	if len(p.Values) > 0 {
		given = &p.Values[(number-1)%len(p.Values)]
	}

	slots := p.Path.slots(in, true)

	for _, each := range slots {
		switch {
		case p.Unset:
			each.clear()
		case p.Stale:
			p.setStale(each, previous)
		case p.Repeat > 0:
			each.repeat(p.Repeat, len(slots))
		default:
			if value, err := at.convert(given.given); err == nil {
				each.set(value)
			}
		}
	}
}

func (p Patch) setStale(at slot, previous proto.Message) {
	if previous == nil {
		return
	}

	// Of a clone: a list or message is in one response only.
	old := p.Path.slots(proto.Clone(previous).ProtoReflect(), false)

	switch {
	case len(old) == 0 || !old[0].has:
		at.clear()
	default:
		at.set(old[0].value)
	}
}

// maxTextBytes and maxEntries bound what one patch makes, in all of a response's slots together. A
// message of that size is beyond what any client reads.
const (
	maxTextBytes = 16 << 20
	maxEntries   = 100_000
)

// repeat makes a text, a list or a map over-long, within the share of one of several slots. An empty
// text is repeated as x.
func (s slot) repeat(times, slots int) {
	within := func(limit, size int) int { return min(times, max(limit/slots/max(size, 1), 1)) }

	switch {
	case s.isContainer() && s.field.IsMap():
		s.repeatMap(within(maxEntries, s.value.Map().Len()))
	case s.isContainer():
		s.repeatList(within(maxEntries, s.value.List().Len()))
	default:
		text := s.value.String()
		if text == "" {
			text = "x"
		}

		s.set(protoreflect.ValueOfString(strings.Repeat(text, within(maxTextBytes, len(text)))))
	}
}

func (s slot) repeatList(times int) {
	list := newMessage(s.field.ContainingMessage()).NewField(s.field)

	for range times {
		for i := range s.value.List().Len() {
			list.List().Append(s.value.List().Get(i))
		}
	}

	s.set(list)
}

// repeatMap adds copies of the entries with other keys, or x=x to an empty map.
func (s slot) repeatMap(times int) {
	repeated := newMessage(s.field.ContainingMessage()).NewField(s.field)

	for number := range times {
		suffix := ""
		if number > 0 {
			suffix = fmt.Sprintf("-%d", number)
		}

		if s.value.Map().Len() == 0 {
			repeated.Map().Set(protoreflect.ValueOfString("x"+suffix).MapKey(), protoreflect.ValueOfString("x"))
		}

		s.value.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
			repeated.Map().Set(protoreflect.ValueOfString(key.String()+suffix).MapKey(), value)

			return true
		})
	}

	s.set(repeated)
}

func (l *Lists) apply(in protoreflect.Message, request proto.Message) {
	if path, ok := listOf(in.Descriptor()); ok {
		list := path.slots(in, true)[0]

		switch {
		case list.value.List().Len() == 0:
		case l.Entries == Duplicate:
			list.value.List().Append(list.value.List().Get(0))
		case l.Entries == Omit:
			remove(list.value.List(), 0)
		}
	}

	field := in.Descriptor().Fields().ByName("next_token")
	if field == nil {
		return
	}

	token := in.Get(field).String()

	switch l.NextToken {
	case Endless:
		if token == "" {
			// The same page again.
			token = request.ProtoReflect().Get(fieldOf(request, "starting_token")).String()
		}

		in.Set(field, protoreflect.ValueOfString(endlessToken+token))
	case Expire:
		in.Set(field, protoreflect.ValueOfString(expiredToken+token))
	}
}

// keep leaves only so many elements of a response's list.
func keep(in protoreflect.Message, count int) {
	path, ok := listOf(in.Descriptor())
	if !ok {
		return
	}

	if list := path.slots(in, true)[0].value.List(); list.Len() > count {
		list.Truncate(count)
	}
}

func (c *Capabilities) apply(in protoreflect.Message) {
	list := in.Mutable(in.Descriptor().Fields().ByName("capabilities")).List()

	for i := list.Len() - 1; i >= 0; i-- {
		if slices.Contains(c.Without, capabilityName(list.Get(i).Message())) {
			remove(list, i)
		}
	}
}

// capabilityName returns the name of a capability in the spec.
func capabilityName(capability protoreflect.Message) string {
	name := ""

	capability.Range(func(_ protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		kind := value.Message().Descriptor().Fields().ByName("type")
		if kind == nil || kind.Enum() == nil {
			return true
		}

		if known := kind.Enum().Values().ByNumber(value.Message().Get(kind).Enum()); known != nil {
			name = string(known.Name())
		}

		return false
	})

	return name
}

func (a *Another) apply(response *csi.CreateVolumeResponse, number int) {
	volume := response.GetVolume()
	if volume == nil {
		return
	}

	if a.VolumeID {
		var seed [8]byte

		binary.BigEndian.PutUint64(seed[:], uint64(number))
		// The same for the same volume and hit.
		volume.VolumeId = uuid.NewSHA1(uuid.NameSpaceOID, append(seed[:], volume.GetVolumeId()...)).String()
	}

	for key, value := range a.VolumeContext {
		if volume.GetVolumeContext() == nil {
			volume.VolumeContext = map[string]string{}
		}

		volume.VolumeContext[key] = value
	}
}

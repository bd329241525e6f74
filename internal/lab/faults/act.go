package faults

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// part is one key of act.
type part struct {
	name  string
	given func(*Act) bool
	// check validates the part alone; applies returns why it has no meaning for a method, nil for all
	// methods. atPoints says that it is possible at the points of operations.
	check    func(*Act) error
	applies  func(*Act, protoreflect.MethodDescriptor) error
	atPoints bool
}

// parts is the table of the keys of act.
var actParts = []part{
	{
		name: "before", given: func(a *Act) bool { return a.Before != nil },
		check: func(a *Act) error { return a.Before.check() }, atPoints: true,
	},
	{
		name: "after", given: func(a *Act) bool { return a.After != nil },
		check: func(a *Act) error { return a.After.check() },
	},
	{name: "unimplemented", given: func(a *Act) bool { return a.Unimplemented }},
	{name: "require_secrets", given: func(a *Act) bool { return len(a.RequireSecrets) > 0 }, applies: hasSecrets},
	{name: "lose", given: func(a *Act) bool { return a.Lose != "" }},
	{
		name: "cut", given: func(a *Act) bool { return a.Cut != nil },
		check: func(a *Act) error { return checkCount(*a.Cut, 0) }, applies: isStream,
	},
	{name: "delay", given: func(a *Act) bool { return a.Delay != nil }, check: (*Act).checkDelay, atPoints: true},
	{name: "hold", given: func(a *Act) bool { return a.Hold != "" }, atPoints: true},
	{
		name: "patch", given: func(a *Act) bool { return len(a.Patch) > 0 },
		check: (*Act).checkPatch, applies: (*Act).patchApplies,
	},
	{
		name: "lists", given: func(a *Act) bool { return a.Lists != nil },
		check: (*Act).checkLists, applies: (*Act).listsApply,
	},
	{
		name: "partial", given: func(a *Act) bool { return a.Partial != nil },
		check: func(a *Act) error { return checkCount(*a.Partial, 0) }, applies: hasList,
	},
	{
		name: "another", given: func(a *Act) bool { return a.Another != nil },
		check: (*Act).checkAnother, applies: isCreateVolume,
	},
	{
		name: "capabilities", given: func(a *Act) bool { return a.Capabilities != nil },
		check: (*Act).checkCapabilities, applies: (*Act).capabilitiesApply,
	},
	{name: "condition", given: func(a *Act) bool { return a.Condition != nil }, check: (*Act).checkCondition},
	{name: "crash", given: func(a *Act) bool { return a.Crash }, atPoints: true},
	{
		name: "start", given: func(a *Act) bool { return a.Start != nil },
		check: func(a *Act) error { return checkCount(int(a.Start.Delay), 1) },
	},
	{
		name: "socket", given: func(a *Act) bool { return a.Socket != nil },
		check: func(a *Act) error { return checkCount(int(a.Socket.Vanish), 1) },
	},
}

func partNames() []string {
	names := make([]string, 0, len(actParts))
	for _, each := range actParts {
		names = append(names, each.name)
	}

	return names
}

// parts returns the parts that are given.
func (a *Act) parts() []part {
	var given []part

	for _, each := range actParts {
		if each.given(a) {
			if each.check == nil {
				each.check = func(*Act) error { return nil }
			}

			given = append(given, each)
		}
	}

	return given
}

func (f *Failure) check() error {
	if f.Code == 0 {
		return fmt.Errorf("%w: it has no code", ErrRule)
	}

	return nil
}

func checkCount(given, least int) error {
	if given < least {
		return fmt.Errorf("%w: %d is too small", ErrRule, given)
	}

	return nil
}

func (a *Act) checkDelay() error {
	switch {
	case a.Delay.Before < 0 || a.Delay.After < 0:
		return fmt.Errorf("%w: a delay is negative", ErrRule)
	case a.Delay.Before == 0 && a.Delay.After == 0:
		return needsOne("before", "after")
	default:
		return nil
	}
}

func (a *Act) checkPatch() error {
	for _, each := range a.Patch {
		count := 0

		for _, given := range []bool{each.Value != nil, len(each.Values) > 0, each.Unset, each.Repeat != 0, each.Stale} {
			if given {
				count++
			}
		}

		switch {
		case each.Path.IsZero():
			return fmt.Errorf("%w: a patch has no path", ErrRule)
		case count != 1:
			return fmt.Errorf("%w: the patch of %s has %d of value, values, unset, repeat and stale, want one", ErrRule, each.Path.text, count)
		case each.Repeat < 0 || each.Repeat > maxTextBytes:
			return fmt.Errorf("%w: the patch of %s repeats %d times; it can up to %d times", ErrRule, each.Path.text, each.Repeat, maxTextBytes)
		}
	}

	return nil
}

func (a *Act) patchApplies(method protoreflect.MethodDescriptor) error {
	for _, each := range a.Patch {
		at, ok := each.Path.resolve(method.Output())
		if !ok {
			return fmt.Errorf("%w: %s has no field %s", ErrRule, method.Output().Name(), each.Path.text)
		}

		values := each.Values
		if each.Value != nil {
			values = Values{*each.Value}
		}

		for _, value := range values {
			if _, err := at.convert(value.given); err != nil {
				return err
			}
		}

		if each.Repeat > 0 && !at.isContainer() && at.value().Kind() != protoreflect.StringKind {
			return fmt.Errorf("%w: %s is neither a text, a list nor a map, and cannot be repeated", ErrRule, each.Path.text)
		}
	}

	return nil
}

func (a *Act) checkLists() error {
	if a.Lists.Entries == "" && a.Lists.NextToken == "" {
		return needsOne("entries", "next_token")
	}

	return nil
}

func (a *Act) listsApply(method protoreflect.MethodDescriptor) error {
	if a.Lists.NextToken != "" && method.Output().Fields().ByName("next_token") == nil {
		return fmt.Errorf("%w: %s has no next_token", ErrRule, method.Output().Name())
	}

	if a.Lists.Entries != "" {
		return hasList(a, method)
	}

	return nil
}

func hasList(_ *Act, method protoreflect.MethodDescriptor) error {
	if _, ok := listOf(method.Output()); !ok {
		return fmt.Errorf("%w: %s has neither entries nor the snapshots of a group", ErrRule, method.Output().Name())
	}

	return nil
}

// listOf returns the path of the list of a response.
func listOf(message protoreflect.MessageDescriptor) (Path, bool) {
	for _, text := range []string{"entries", "group_snapshot.snapshots"} {
		path, err := parsePath(text)
		if _, ok := path.resolve(message); ok && err == nil {
			return path, true
		}
	}

	return Path{}, false
}

func (a *Act) checkAnother() error {
	if !a.Another.VolumeID && len(a.Another.VolumeContext) == 0 {
		return needsOne("volume_id", "volume_context")
	}

	return nil
}

func isCreateVolume(_ *Act, method protoreflect.MethodDescriptor) error {
	if method.Output() != (&csi.CreateVolumeResponse{}).ProtoReflect().Descriptor() {
		return fmt.Errorf("%w: another is for CreateVolume, not for %s", ErrRule, method.Name())
	}

	return nil
}

func isStream(_ *Act, method protoreflect.MethodDescriptor) error {
	if !method.IsStreamingServer() {
		return fmt.Errorf("%w: cut is for streams, such as GetMetadataAllocated, not for %s", ErrRule, method.Name())
	}

	return nil
}

func hasSecrets(_ *Act, method protoreflect.MethodDescriptor) error {
	if method.Input().Fields().ByName("secrets") == nil {
		return fmt.Errorf("%w: %s has no secrets", ErrRule, method.Input().Name())
	}

	return nil
}

func (a *Act) checkCapabilities() error {
	if len(a.Capabilities.Without) == 0 {
		return needsOne("without")
	}

	return nil
}

// capabilitiesApply wants each name to be one of the method's, so that a typing error is found.
func (a *Act) capabilitiesApply(method protoreflect.MethodDescriptor) error {
	field := method.Output().Fields().ByName("capabilities")
	if field == nil || !field.IsList() {
		return fmt.Errorf("%w: %s has no capabilities", ErrRule, method.Output().Name())
	}

	for _, name := range a.Capabilities.Without {
		if !hasEnumValue(field.Message(), protoreflect.Name(name)) {
			return fmt.Errorf("%w: %q is no capability of %s", ErrRule, name, method.Name())
		}
	}

	return nil
}

// hasEnumValue reports whether a capability can have that name.
func hasEnumValue(capability protoreflect.MessageDescriptor, name protoreflect.Name) bool {
	for i := range capability.Fields().Len() {
		field := capability.Fields().Get(i)
		if field.Kind() != protoreflect.MessageKind {
			continue
		}

		if kind := field.Message().Fields().ByName("type"); kind != nil && kind.Enum().Values().ByName(name) != nil {
			return true
		}
	}

	return false
}

func (a *Act) checkCondition() error {
	if a.Condition.Status == "" || a.Condition.Reason == "" {
		return fmt.Errorf("%w: a condition has a status and a reason", ErrRule)
	}

	return nil
}

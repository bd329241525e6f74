package faults

import (
	"fmt"

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

// actParts is the table of the keys of act.
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
	{name: "patch", given: func(a *Act) bool { return !a.Patch.IsZero() }, applies: (*Act).checkPatch},
	{name: "endless", given: func(a *Act) bool { return a.Endless }, applies: hasPages},
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
		return fmt.Errorf("%w: it has none of before, after", ErrRule)
	default:
		return nil
	}
}

func hasPages(_ *Act, method protoreflect.MethodDescriptor) error {
	if method.Output().Fields().ByName("next_token") == nil {
		return fmt.Errorf("%w: %s has no next_token", ErrRule, method.Output().Name())
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

func (a *Act) checkCondition() error {
	if a.Condition.Status == "" || a.Condition.Reason == "" {
		return fmt.Errorf("%w: a condition has a status and a reason", ErrRule)
	}

	return nil
}

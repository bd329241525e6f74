package calls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/lab/jq"
)

// ErrFilter is returned for a filter that cannot match.
var ErrFilter = errdefs.New(errdefs.ErrInvalidArgument, "filter of calls")

// Filter selects calls. Each field that is set restricts it.
type Filter struct {
	// Method is a glob of the RPC's name, such as Node*Volume, or of the full name if it has a
	// slash.
	Method string `json:"method,omitempty"`
	// Code is a status code, such as NOT_FOUND or NotFound.
	Code string `json:"code,omitempty"`
	// Object is the id or name of a volume, snapshot or group. By the name of an object its
	// later calls are found too, which have only its id, if its creation is recorded.
	Object string `json:"object,omitempty"`
	// Since selects calls that began then or later; SinceCall those with a greater number.
	Since     *time.Time `json:"since,omitempty"`
	SinceCall uint64     `json:"since_call,omitempty"`
	// JQ is a jq filter of Call.Input: a call is selected if an output is neither false nor null. A call for
	// which it fails is not; if it fails for each call, List and a Wait that times out return an error.
	JQ string `json:"jq,omitempty"`
}

// matcher compares calls, in the order in which they ended, with a filter.
type matcher struct {
	Filter

	// program is nil without JQ.
	program *jq.Program
	// same are the ids and names of the filter's object.
	same []string
	// failure is that of the program for the first call, and ran is set once it did not fail.
	failure error
	ran     bool
}

// newMatcher returns a matcher, or ErrFilter for an invalid glob or program, or an unknown code.
func newMatcher(filter Filter) (*matcher, error) {
	if _, err := path.Match(filter.Method, ""); err != nil {
		return nil, fmt.Errorf("%w: method %q: %w", ErrFilter, filter.Method, err)
	}

	if filter.Code != "" && !knownCode(filter.Code) {
		return nil, fmt.Errorf("%w: code %q is no gRPC status code; one is NOT_FOUND", ErrFilter, filter.Code)
	}

	m := &matcher{Filter: filter, same: []string{filter.Object}}
	if filter.JQ == "" {
		return m, nil
	}

	program, err := jq.Parse(filter.JQ)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFilter, err)
	}

	m.program = program

	return m, nil
}

// matches reports whether the filter selects the call. Errors: ErrFilter, ctx's. Call it for each call, also of those that
// another field excludes: it learns the ids of the filter's object.
func (m *matcher) matches(ctx context.Context, call *Call) (bool, error) {
	about := m.Object == "" || slices.ContainsFunc(call.Objects, func(object string) bool { return slices.Contains(m.same, object) })

	// Not the other objects of the call, such as the source of a snapshot, nor those of a learned name: a
	// later object may have it.
	if call.name != "" && call.id != "" && (call.name == m.Object || call.id == m.Object) {
		m.same = appendNew(appendNew(m.same, call.name), call.id)
	}

	selected := about && m.matchesFields(call)
	if !selected || m.program == nil {
		return selected, nil
	}

	input, err := call.Input()
	if err != nil {
		return false, err
	}

	holds, err := m.program.Holds(ctx, input)

	switch {
	case err == nil:
		m.ran = true
	case errors.Is(err, jq.ErrLimit):
		return false, fmt.Errorf("%w: call %d: %w", ErrFilter, call.Number, err)
	case errors.Is(err, jq.ErrProgram):
		m.failure = cmp.Or(m.failure, fmt.Errorf("%w: call %d: %w", ErrFilter, call.Number, err))

		return false, nil
	}

	return holds, err
}

func (m *matcher) matchesFields(call *Call) bool {
	return m.matchesMethod(call) &&
		(m.Code == "" || plain(m.Code) == plain(call.Code)) &&
		(m.Since == nil || !call.Started.Before(*m.Since)) &&
		call.Number > m.SinceCall
}

// matching returns the calls that the filter selects. Errors: ErrFilter, ctx's.
func (m *matcher) matching(ctx context.Context, found []*Call) ([]*Call, error) {
	selected := []*Call{}

	for _, call := range found {
		matches, err := m.matches(ctx, call)
		if err != nil {
			return nil, err
		}

		if matches {
			selected = append(selected, call)
		}
	}

	return selected, nil
}

// mistake returns the failure of a program that has failed for each call so far, nil for one that ran.
func (m *matcher) mistake() error {
	if m.ran {
		return nil
	}

	return m.failure
}

func (m *matcher) matchesMethod(call *Call) bool {
	if m.Method == "" {
		return true
	}

	name := call.RPC()
	if strings.Contains(m.Method, "/") {
		name = call.Method
	}

	matched, _ := path.Match(m.Method, name) // newMatcher has checked the glob

	return matched
}

// plain makes NOT_FOUND and NotFound equal.
func plain(code string) string { return strings.ToLower(strings.ReplaceAll(code, "_", "")) }

package calls

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// ErrFilter is returned for a filter that cannot match.
var ErrFilter = errors.New("filter of calls")

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
}

// matcher compares calls, in the order in which they ended, with a filter.
type matcher struct {
	Filter

	// same are the ids and names of the filter's object.
	same []string
}

// newMatcher returns a matcher, or ErrFilter for an invalid glob or an unknown code.
func newMatcher(filter Filter) (*matcher, error) {
	if _, err := path.Match(filter.Method, ""); err != nil {
		return nil, fmt.Errorf("%w: method %q: %w", ErrFilter, filter.Method, err)
	}

	if filter.Code != "" && !knownCode(filter.Code) {
		return nil, fmt.Errorf("%w: code %q is no gRPC status code; one is NOT_FOUND", ErrFilter, filter.Code)
	}

	return &matcher{Filter: filter, same: []string{filter.Object}}, nil
}

// matches reports whether the filter selects the call. Call it for each call, also of those that
// another field excludes: it learns the ids of the filter's object.
func (m *matcher) matches(call *Call) bool {
	about := m.Object == "" || slices.ContainsFunc(call.Objects, func(object string) bool { return slices.Contains(m.same, object) })

	// Not the other objects of the call, such as the source of a snapshot, nor those of a learned name: a
	// later object may have it.
	if call.name != "" && call.id != "" && (call.name == m.Object || call.id == m.Object) {
		m.same = appendNew(appendNew(m.same, call.name), call.id)
	}

	return about && m.matchesMethod(call) &&
		(m.Code == "" || plain(m.Code) == plain(call.Code)) &&
		(m.Since == nil || !call.Started.Before(*m.Since)) &&
		call.Number > m.SinceCall
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

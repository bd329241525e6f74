// Package leftover finds what a driver has left behind when it has ended: what belongs to an object
// that does not exist any more, or to the ended driver itself.
//
// A driver has an object if its state has a record of it or one of its pools has its image or
// directory. Each function returns the findings of one kind; the harness (test/harness) calls all of
// them at the end of each test.
package leftover

import (
	"cmp"
	"regexp"
	"slices"
)

// Kind is what a finding is about.
type Kind string

// Kinds of findings.
const (
	// Record is a record in the state of an object that has gone, or of a use that has ended.
	Record Kind = "record"
	// Entry is a file or directory of an object that has gone.
	Entry Kind = "entry"
	// Memory is a reference in the driver's memory to an object that has gone: of a monitor, a lock, a
	// queue, an index.
	Memory Kind = "memory"
	// Series is a time series of a metric about an object that has gone.
	Series Kind = "series"
	// Quota is a quota group or a project's limit without its directory.
	Quota Kind = "quota"
	// Goroutine is one of a driver that has ended.
	Goroutine Kind = "goroutine"
	// Descriptor is an open file of a driver that has ended.
	Descriptor Kind = "descriptor"
)

// Kinds are all kinds.
var Kinds = []Kind{Record, Entry, Memory, Series, Quota, Goroutine, Descriptor}

// Finding is one thing that is left.
type Finding struct {
	Kind Kind `json:"kind"`
	// What is left, and where.
	What string `json:"what"`
}

// String says what is left.
func (f Finding) String() string { return string(f.Kind) + " is left: " + f.What }

// Objects are the ids of the objects that exist.
type Objects map[string]bool

// ids matches the ids of objects: UUIDs of version 7 (volume.NewID), and those that a kubelet gives to
// inline ephemeral volumes.
var ids = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}|csi-[0-9a-f]{64}`)

// gone returns the ids in a text that are not those of objects.
func (o Objects) gone(text string) []string {
	found := ids.FindAllString(text, -1)

	return slices.DeleteFunc(found, func(id string) bool { return o[id] })
}

// sorted returns findings in the order of their texts, each once.
func sorted(found []Finding) []Finding {
	slices.SortFunc(found, func(a, b Finding) int { return cmp.Compare(a.String(), b.String()) })

	return slices.Compact(found)
}

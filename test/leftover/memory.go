package leftover

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unsafe"
)

const module = "github.com/touchstone-csi/touchstone/"

// kept are the fields that may name objects that have gone, with the reason. The number of those objects
// is limited, and not by how many there have been.
var kept = map[string]string{
	"internal/lab/calls.Recorder.kept":      "the call log has the last calls, up to a number and a size",
	"internal/lab/faults.Injector.hits":     "the log has the last hits of rules, a fixed number",
	"internal/health.History.ring":          "the history has the last changes of conditions, a fixed number",
	"internal/pool/removal.Queue.entries":   "they are tried again until they succeed; the harness waits for those that do not fail",
	"internal/lab/strict.violations.byKey":  "they are the violations that were found, one of each kind and object up to a limit",
	"internal/lab/strict.lifecycle.volumes": "what the CO's calls have shown, also of volumes of another driver, up to a limit",
	"pkg/node/staged.Volume.StagingPath":    "the CO chooses the path; the record's id names the volume",
	"pkg/node/fsck.schedule.changed":        "the checker takes them at its next turn, unless the driver has ended before",
	"internal/health.cache.forgotten":       "an older observation is refused until the next relist",
}

// notInUse have the volumes that could not be staged or released, which are conditions until a probe
// finds that over.
var notInUse = []string{"pkg/node/probe.failedStagings.byVolume", "pkg/node/probe.busyVolumes.byVolume"}

// InMemory returns a finding for each field in the memory of a driver that names an object that is
// gone: the key of a map, an element of a list, a field. The driver must have ended. Closures and
// values of other modules' types are not searched, except for containers, and the store's own memory
// neither: its records are compared on disk.
//
// The node's memory may name those of the objects that are in use, or could not be staged or released,
// and no others.
func InMemory(driver any, objects, inUse Objects) []Finding {
	places := map[string]Objects{}

	w := &walker{seen: map[visited]bool{}, text: func(place, text string) {
		for _, id := range ids.FindAllString(text, -1) {
			if places[place] == nil {
				places[place] = Objects{}
			}

			places[place][id] = true
		}
	}}
	w.walk(reflect.ValueOf(driver), "driver")

	onNode := maps.Clone(inUse)

	for _, place := range notInUse {
		for id := range places[place] {
			if objects[id] {
				onNode[id] = true
			}
		}
	}

	for place, named := range places {
		existing := objects
		if strings.HasPrefix(place, "pkg/node/") {
			existing = onNode
		}

		maps.DeleteFunc(named, func(id string, _ bool) bool { return existing[id] })
	}

	var found []Finding

	for place, gone := range places {
		if len(gone) == 0 {
			continue
		}

		first := slices.Min(slices.Collect(maps.Keys(gone)))
		found = append(found, Finding{Memory, fmt.Sprintf("%s has %d objects that are gone, such as %s", place, len(gone), first)})
	}

	return sorted(found)
}

// Find returns a part of a driver by its type, nil without one. The driver must not run yet.
func Find[T any](driver any) *T {
	var found *T

	w := &walker{seen: map[visited]bool{}, pointer: func(value reflect.Value) {
		if value.Type() == reflect.TypeFor[*T]() && !value.IsNil() {
			found = (*T)(value.UnsafePointer())
		}
	}}
	w.walk(reflect.ValueOf(driver), "driver")

	return found
}

type visited struct {
	at unsafe.Pointer
	of reflect.Type
}

// walker walks through all values that a value leads to.
type walker struct {
	seen map[visited]bool
	// text and pointer, if not nil, are called with each.
	text    func(place, text string)
	pointer func(reflect.Value)
}

// walk walks through the value that a field of a type leads to.
func (w *walker) walk(value reflect.Value, place string) {
	switch value.Kind() {
	case reflect.String:
		if w.text != nil {
			w.text(place, value.String())
		}
	case reflect.Pointer:
		at := visited{value.UnsafePointer(), value.Type()}
		if value.IsNil() || w.seen[at] {
			return
		}

		w.seen[at] = true
		if w.pointer != nil {
			w.pointer(value)
		}

		w.walk(value.Elem(), place)
	case reflect.Interface:
		w.walk(value.Elem(), place)
	case reflect.Map:
		for entry := value.MapRange(); entry.Next(); {
			w.walk(entry.Key(), place)
			w.walk(entry.Value(), place)
		}
	case reflect.Slice, reflect.Array:
		for i := range value.Len() {
			if kind := value.Index(i).Kind(); kind < reflect.Array && kind != reflect.Invalid {
				return // numbers
			}

			w.walk(value.Index(i), place)
		}
	case reflect.Struct:
		w.walkStruct(value, place)
	default: // neither names an object nor leads to one
	}
}

func (w *walker) walkStruct(value reflect.Value, place string) {
	of := value.Type()

	switch {
	case of == reflect.TypeFor[sync.Map]():
		if value.CanAddr() {
			(*sync.Map)(value.Addr().UnsafePointer()).Range(func(key, entry any) bool {
				w.walk(reflect.ValueOf(key), place)
				w.walk(reflect.ValueOf(entry), place)

				return true
			})
		}

		return
	case of.PkgPath() == "sync/atomic" && strings.HasPrefix(of.Name(), "Pointer["):
		if value.CanAddr() {
			pointer := reflect.NewAt(of, value.Addr().UnsafePointer())
			w.walk(pointer.MethodByName("Load").Call(nil)[0], place)
		}

		return
	case !searched(of):
		return
	}

	synchronize(value)

	for i := range of.NumField() {
		field := of.Field(i)
		at := place

		if own, ok := strings.CutPrefix(of.PkgPath(), module); ok && of.Name() != "" {
			name, _, _ := strings.Cut(of.Name(), "[")
			at = own + "." + name + "." + field.Name
		}

		if _, ok := kept[at]; !ok {
			w.walk(value.Field(i), at)
		}
	}
}

// synchronize lets what follows happen after all that was done with the locks of a struct held: a goroutine
// may have ended without another one that awaited it. A lock that is held is not awaited.
func synchronize(value reflect.Value) {
	for _, field := range value.Fields() {
		var lock interface {
			TryLock() bool
			Unlock()
		}

		switch field.Type() {
		case reflect.TypeFor[sync.Mutex]():
			if field.CanAddr() {
				lock = (*sync.Mutex)(field.Addr().UnsafePointer())
			}
		case reflect.TypeFor[sync.RWMutex]():
			if field.CanAddr() {
				lock = (*sync.RWMutex)(field.Addr().UnsafePointer())
			}
		case reflect.TypeFor[*sync.Cond]():
			if !field.IsNil() {
				lock = (*sync.Cond)(field.UnsafePointer()).L.(*sync.Mutex)
			}
		}

		if lock != nil && lock.TryLock() {
			lock.Unlock()
		}
	}
}

// searched reports whether the fields of a type are searched.
func searched(of reflect.Type) bool {
	path := of.PkgPath()
	own, isOwn := strings.CutPrefix(path, module)

	return path == "" || isOwn && !strings.HasPrefix(own, "test/") && own != "pkg/state" || path == "github.com/tidwall/btree" ||
		path == "k8s.io/client-go/util/workqueue" || path == "container/list"
}

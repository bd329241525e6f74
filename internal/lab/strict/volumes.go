package strict

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// maxVolumes bounds the volumes whose lifecycle is known. Those that no call was about for the
// longest time are forgotten first; what is forgotten is unknown.
const maxVolumes = 10000

// state is what is known of a volume's attachment, staging or publication.
type state int

const (
	unknown state = iota
	// no: it never was, or its end has succeeded.
	no
	// yes: its begin has succeeded, and its end has not.
	yes
)

// volume is what calls have shown of a volume.
type volume struct {
	id, name string
	// fresh: the monitor has seen all calls for it, so that what it has not seen has not happened.
	fresh bool
	// created is the request that created it; created.isZero: unknown.
	created fingerprint
	// context is the volume_context, if hasContext.
	context    map[string]string
	hasContext bool
	// capacity is the last one that a controller returned, 0 if unknown.
	capacity    int64
	attachments map[string]attachment
	// staging is the state of the staging on this node, at stagingPath if yes.
	staging     state
	stagingPath string
	// targets are the target paths at which the volume is published on this node.
	targets map[string]bool
	// used orders volumes by their last call.
	used uint64
}

// attachment is the state of a volume on a node.
type attachment struct {
	state   state
	context map[string]string
}

func (v *volume) attachedTo(node string) state {
	known, ok := v.attachments[node]

	switch {
	case ok:
		return known.state
	case v.fresh:
		return no
	default:
		return unknown
	}
}

// inUse describes the use of a volume, "" for none that is known.
func (v *volume) inUse() string {
	for _, node := range slices.Sorted(maps.Keys(v.attachments)) {
		if v.attachments[node].state == yes {
			return "it is attached to node " + node
		}
	}

	switch {
	case len(v.targets) > 0:
		return "it is published at " + slices.Min(slices.Collect(maps.Keys(v.targets)))
	case v.staging == yes:
		return "it is staged at " + v.stagingPath
	default:
		return ""
	}
}

// volumes are the known ones.
type volumes struct {
	byID   map[string]*volume
	byName map[string]*volume
	// targets has the volume at each target path.
	targets map[string]*volume
	calls   uint64
}

func newVolumes() volumes {
	return volumes{byID: map[string]*volume{}, byName: map[string]*volume{}, targets: map[string]*volume{}}
}

// get returns a volume, which is added if it is not known.
func (s *volumes) get(id string) *volume {
	s.calls++

	known := s.byID[id]
	if known == nil {
		if len(s.byID) >= maxVolumes {
			s.forgetOldest()
		}

		known = &volume{id: id, attachments: map[string]attachment{}, targets: map[string]bool{}}
		s.byID[id] = known
	}

	known.used = s.calls

	return known
}

func (s *volumes) name(v *volume, name string) {
	if v.name != "" && s.byName[v.name] == v {
		delete(s.byName, v.name)
	}

	v.name, s.byName[name] = name, v
}

// nameOf returns the name of the volume that a call's violations are about, "" if it is unknown.
func (s *volumes) nameOf(found []finding) string {
	for _, each := range found {
		if known := s.byID[each.object]; known != nil {
			return known.name
		}
	}

	return ""
}

func (s *volumes) forget(v *volume) {
	delete(s.byID, v.id)

	if s.byName[v.name] == v {
		delete(s.byName, v.name)
	}

	for target := range v.targets {
		s.unpublish(v, target)
	}
}

func (s *volumes) publish(v *volume, target string) {
	if before := s.targets[target]; before != nil {
		delete(before.targets, target)
	}

	v.targets[target], s.targets[target] = true, v
}

func (s *volumes) unpublish(v *volume, target string) {
	delete(v.targets, target)

	if s.targets[target] == v {
		delete(s.targets, target)
	}
}

// forgetOldest forgets a tenth of the volumes.
func (s *volumes) forgetOldest() {
	all := slices.SortedFunc(maps.Values(s.byID), func(a, b *volume) int { return cmp.Compare(a.used, b.used) })
	for _, each := range all[:max(len(all)/10, 1)] {
		s.forget(each)
	}
}

// createdSince reports whether the id was made at that time or later. The driver's ids are UUIDv7,
// which have the time of their creation in milliseconds.
func createdSince(id string, since time.Time) bool {
	parsed, err := uuid.Parse(id)
	if err != nil || parsed.Version() != 7 {
		return false
	}

	seconds, nanoseconds := parsed.Time().UnixTime()

	return !time.Unix(seconds, nanoseconds).Before(since.Truncate(time.Millisecond))
}

// addedByCO reports whether Kubernetes adds the key to a volume_context: external-provisioner its
// identity, the kubelet what it knows of the pod.
func addedByCO(key string) bool {
	return key == "storage.kubernetes.io/csiProvisionerIdentity" || strings.HasPrefix(key, "csi.storage.k8s.io/")
}

// sameContext reports whether a request has the context that a response returned; the CO may have
// added keys to it.
func sameContext(returned, given map[string]string) bool {
	for key, value := range returned {
		if passed, ok := given[key]; !ok || passed != value {
			return false
		}
	}

	for key := range given {
		if _, ok := returned[key]; !ok && !addedByCO(key) {
			return false
		}
	}

	return true
}

package faults

import (
	"slices"
	"time"

	"github.com/touchstone-csi/touchstone/internal/health"
)

// Entries returns the conditions that rules give a volume in a view. It is health.Settings.Inject.
func (i *Injector) Entries(view, volumeID string) []health.Entry {
	now := time.Now()

	i.mu.Lock()
	rules := slices.DeleteFunc(slices.Clone(i.rules.active), func(a *active) bool { return a.ended(now) })
	i.mu.Unlock()

	var found []health.Entry

	for _, each := range rules {
		condition := each.Act.Condition
		if condition == nil || condition.View != "" && string(condition.View) != view || !isVolumeView(view) {
			continue
		}

		if !i.matcher.matchesObjects(&each.Match, func(string) []string { return []string{volumeID} }) {
			continue
		}

		entry := health.Entry{Reason: health.Reason(condition.Reason), Message: condition.Message}
		_ = entry.Status.UnmarshalText([]byte(condition.Status))

		if entry.Message == "" {
			entry.Message = "fault rule " + each.Name
		}

		found = append(found, entry)
	}

	return found
}

// isVolumeView reports whether the subjects of a view are volumes.
func isVolumeView(view string) bool {
	return view == string(NodeView) || view == string(ControllerView)
}

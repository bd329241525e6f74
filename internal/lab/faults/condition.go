package faults

import (
	"time"

	"github.com/touchstone-csi/touchstone/internal/health"
)

// Entries returns the conditions that rules give a volume in a view. It is health.Settings.Inject.
func (i *Injector) Entries(view, volumeID string) []health.Entry {
	i.mu.Lock()
	rules := append([]*active(nil), i.rules...)
	i.mu.Unlock()

	var (
		found []health.Entry
		now   = time.Now()
	)

	for _, each := range rules {
		condition := each.Act.Condition
		if condition == nil || condition.View != "" && string(condition.View) != view || !isVolumeView(view) {
			continue
		}

		if !i.matchesObjects(&each.Match, func(string) []string { return []string{volumeID} }) || i.isOver(each, now) {
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

// isOver reports whether the rule has ended.
func (i *Injector) isOver(rule *active, now time.Time) bool {
	i.mu.Lock()
	defer i.mu.Unlock()

	return rule.ended(now)
}

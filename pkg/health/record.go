package health

import "slices"

// StateSubject is the state store's subject in the storage view.
const StateSubject = "state"

// PoolSubject is a pool's subject in the storage view.
func PoolSubject(name string) string { return "pool " + name }

// Has reports whether an entry has the reason; false for a nil record.
func (r *Record) Has(reason Reason) bool {
	return r != nil && slices.ContainsFunc(r.Entries, func(entry Entry) bool { return entry.Reason == reason })
}

// Reports returns the entries for a Report, with the name of the view; never nil, so
// that they are a list in JSON.
func (r *Record) Reports(view string) []ConditionReport {
	reports := []ConditionReport{}
	if r == nil {
		return reports
	}

	for _, entry := range r.Entries {
		reports = append(reports, ConditionReport{Entry: entry, View: view, Since: r.Since[entry.Reason]})
	}

	return reports
}

package health

import "slices"

// StateSubject is the state store's subject in the storage view.
const StateSubject = "state"

// PoolSubject is a pool's subject in the storage view.
func PoolSubject(name string) string { return "pool " + name }

// Has says whether the reason is among what is the matter. Without a record
// nothing is.
func (r *Record) Has(reason Reason) bool {
	return r != nil && slices.ContainsFunc(r.Entries, func(entry Entry) bool { return entry.Reason == reason })
}

// Reports are the entries for people, as the view of that name sees them; never
// nil, so that they are a list in JSON.
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

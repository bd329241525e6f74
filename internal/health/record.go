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

// Merge returns the record of a subject in two views: the entries of one, and those of other
// for which isWanted is true and whose reason one does not have. Either record may be nil. It
// returns one itself where other adds nothing, and nil for a subject without entries.
func Merge(one, other *Record, isWanted func(Entry) bool) *Record {
	var added []Entry

	if other != nil {
		for _, entry := range other.Entries {
			if isWanted(entry) && !one.Has(entry.Reason) {
				added = append(added, entry)
			}
		}
	}

	switch {
	case len(added) > 0 && one != nil:
		return &Record{ID: one.ID, Entries: normalize(append(added, one.Entries...))}
	case len(added) > 0:
		return &Record{ID: other.ID, Entries: added}
	case one == nil || one.Healthy():
		return nil
	default:
		return one
	}
}

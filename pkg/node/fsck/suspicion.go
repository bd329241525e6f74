package fsck

import (
	"time"

	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Truncated is the message of a suspicion about an image that was truncated.
const Truncated = "its image was too short: data may be lost; check it (touchstone check)"

// Suspect records that the filesystem of the volume may be damaged. Record is the staged volume, nil
// where it is not in use: then only a volume that had a filesystem on this node is suspected.
func (r *Results) Suspect(volumeID string, record *staged.Volume, suspicion Suspicion) {
	r.replacing.Lock()
	defer r.replacing.Unlock()

	older := r.Get(volumeID)

	switch {
	case older != nil && cleanSince(older, suspicion.At):
		return
	case older == nil && record == nil:
		return
	case older == nil:
		older = stagingRecord(record, suspicion.At)
		older.Verdict, older.Detail = VerdictFailed, suspicion.Message
	}

	if known := older.Suspicion; known != nil {
		if !suspicion.At.After(known.At) && known.Reason.Status() >= suspicion.Reason.Status() {
			return
		}

		suspicion = known.mergedWith(suspicion)
	}

	changed := *older
	changed.Suspicion = &suspicion

	if err := r.records.PutLazily(&changed); err != nil {
		r.log.Error("cannot record that a filesystem may be damaged", "volume", volumeID, "error", err)
	}
}

// cleanSince reports whether a check that began after that time found the filesystem clean. A check in
// the future is from before the clock was set back.
func cleanSince(record *Result, at time.Time) bool {
	return record.CleanAt.After(at) && !record.CleanAt.Round(0).After(time.Now().Round(0))
}

// mergedWith returns the worse of both, at the time of the later one.
func (s *Suspicion) mergedWith(other Suspicion) Suspicion {
	merged := *s
	if other.Reason.Status() > s.Reason.Status() {
		merged = other
	}

	merged.At = later(s.At, other.At)

	return merged
}

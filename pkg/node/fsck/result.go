package fsck

import (
	"fmt"
	"slices"
	"time"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// Result is the durable result of the checks of a volume's filesystem on this node. A
// record in the store is never modified: a newer check replaces it.
type Result struct {
	VolumeID string `json:"volumeId"`
	Pool     string `json:"pool"`
	FSType   string `json:"fsType"`
	// At, Verdict, Detail, Took and How describe the newest check. A failed check does not
	// cancel damage: then they still describe the check that found it.
	At      time.Time     `json:"at"`
	Verdict string        `json:"verdict"`
	Detail  string        `json:"detail,omitempty"`
	Took    time.Duration `json:"took"`
	How     string        `json:"how"`
	// CleanAt is the time of the last check that found nothing or repaired all it found.
	CleanAt time.Time `json:"cleanAt,omitzero"`
	// Errors is the kernel's error count of the filesystem at that time. Only a higher
	// count is a finding.
	Errors uint64 `json:"errors,omitempty"`
	// Suspicion is what was observed since a check of all metadata, nil for nothing.
	Suspicion *Suspicion `json:"suspicion,omitempty"`
	// Since is the start of the period in which the next check is due: the newest offline
	// or online check, or else the first staging. The check at staging does not count,
	// because it trusts a filesystem that is marked clean.
	Since time.Time `json:"since"`
}

// Suspicion is why a filesystem may be damaged that no check has found damaged. Only a clean check of
// all its metadata that began later ends it: what was observed may not be observable any more.
type Suspicion struct {
	Reason  health.Reason `json:"reason"`
	Message string        `json:"message"`
	// At is when it was last observed.
	At time.Time `json:"at"`
}

// HasFinding reports whether the filesystem is damaged or suspected to be.
func (r *Result) HasFinding() bool {
	return r != nil && (r.Verdict == VerdictDamaged || r.Suspicion != nil)
}

// RecordID returns the key of the record in the store.
func (r *Result) RecordID() string { return r.VolumeID }

// Check implements [staged.Record].
func (r *Result) Check() error {
	verdict := slices.Contains([]string{VerdictClean, VerdictRepaired, VerdictDamaged, VerdictFailed}, r.Verdict)
	how := slices.Contains([]string{HowStage, HowOffline, HowOnline}, r.How)

	if !verdict || !how || !filesystem.IsSupported(r.FSType) {
		return fmt.Errorf("%w: verdict %q, how %q, fsType %q", staged.ErrRecord, r.Verdict, r.How, r.FSType)
	}

	if r.Suspicion != nil && !slices.Contains(health.Reasons(), r.Suspicion.Reason) {
		return fmt.Errorf("%w: suspicion of %q", staged.ErrRecord, r.Suspicion.Reason)
	}

	return volume.CheckID(r.VolumeID)
}

// NewRecords registers the collection of results in store, which must not be open yet.
func NewRecords(store *state.Store) *staged.Records[*Result] {
	return staged.NewRecords[*Result](store, "checks")
}

// The verdicts of checks.
const (
	// VerdictClean means that nothing was found.
	VerdictClean = "clean"
	// VerdictRepaired means that all that was found is repaired.
	VerdictRepaired = "repaired"
	// VerdictDamaged means that there is damage which only an administrator can repair.
	VerdictDamaged = "damaged"
	// VerdictFailed means that the check could not be made.
	VerdictFailed = "failed"
)

// How a filesystem was checked.
const (
	// HowStage is before the volume was mounted.
	HowStage = "stage"
	// HowOffline is in place, while the volume is not used.
	HowOffline = "offline"
	// HowOnline is on a copy, made while the mounted filesystem was frozen.
	HowOnline = "online"
)

// verdictOf returns the verdict for the state that a filesystem's tool has found. A log that still needs
// a replay after it was replayed counts as damage.
func verdictOf(found filesystem.State) string {
	switch found {
	case filesystem.Clean:
		return VerdictClean
	case filesystem.Repaired:
		return VerdictRepaired
	default:
		return VerdictDamaged
	}
}

// IsClean reports whether the check left no damage.
func (r *Result) IsClean() bool { return r.Verdict == VerdictClean || r.Verdict == VerdictRepaired }

// mergedWith returns the record to store when r follows older, which may be nil.
func (r *Result) mergedWith(older *Result) *Result {
	merged := *r

	if r.IsClean() {
		merged.CleanAt = r.At
	} else if older != nil {
		merged.CleanAt, merged.Errors = older.CleanAt, older.Errors
	}

	if older == nil {
		return &merged
	}

	merged.Suspicion = older.Suspicion
	if r.ends(older.Suspicion) {
		merged.Suspicion = nil
	}

	switch r.How {
	case HowStage:
		merged.Since = older.Since
	case HowOffline:
		// The kernel's count can be read only where the filesystem is mounted.
		merged.Errors = older.Errors
	}

	if r.Verdict == VerdictFailed && older.Verdict == VerdictDamaged {
		since := merged.Since
		merged = *older
		merged.Since = since
	}

	return &merged
}

// ends reports whether the check ends the suspicion, which may be nil. One in the future is from
// before the clock was set back.
func (r *Result) ends(suspicion *Suspicion) bool {
	if suspicion == nil || !r.IsClean() {
		return false
	}

	return r.At.After(suspicion.At) || suspicion.At.Round(0).After(time.Now().Round(0))
}

// supersedes reports whether r began after found. A check in the future is from before
// the clock was set back.
func (r *Result) supersedes(found *Result, now time.Time) bool {
	return r.At.After(found.At) && !r.At.Round(0).After(now.Round(0))
}

package node

import (
	"context"
	"errors"
	"time"
)

// Check is what the checks of a volume's filesystem on this node have found. A
// record is never changed once it is in the store.
type Check struct {
	VolumeID string `json:"volumeId"`
	Pool     string `json:"pool"`
	FSType   string `json:"fsType"`
	// At, Verdict, Detail, Took and How are the newest check's.
	At      time.Time     `json:"at"`
	Verdict string        `json:"verdict"`
	Detail  string        `json:"detail,omitempty"`
	Took    time.Duration `json:"took"`
	How     string        `json:"how"`
	// CleanAt is when a check last found nothing, or repaired all.
	CleanAt time.Time `json:"cleanAt,omitzero"`
	// Errors is how many errors the kernel had counted then: older ones need not
	// be told again.
	Errors uint64 `json:"errors,omitempty"`
}

func (c *Check) recordID() string { return c.VolumeID }

// The verdicts of checks.
const (
	// VerdictClean means that nothing was found.
	VerdictClean = "clean"
	// VerdictRepaired means that all that was found is repaired.
	VerdictRepaired = "repaired"
	// VerdictDamaged means that something is left for a person to repair.
	VerdictDamaged = "damaged"
	// VerdictFailed means that the check could not look.
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

// Check checks the volume's filesystem now, in place where it is not in use, else
// online. It changes nothing but the record. Errors: NOT_FOUND,
// FAILED_PRECONDITION for what has no filesystem that can be checked now.
func (s *Service) Check(ctx context.Context, volumeID string) (*Check, error) {
	return nil, errors.ErrUnsupported
}

// Checks checks filesystems whenever they are due, until ctx ends.
func (s *Service) Checks(ctx context.Context) { <-ctx.Done() }

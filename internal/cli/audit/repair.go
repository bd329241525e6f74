package audit

import (
	"context"
	"fmt"

	"github.com/touchstone-csi/touchstone/pkg/pool"
)

// Repaired says what Repair did about the findings.
type Repaired struct {
	Before  Report
	Removed []Finding
	// Left are those that need a person, and those that turned out to be in use.
	Left []Finding
}

// Repair does what Verify named as the fixes of its findings in the pools, and
// nothing else: nothing that holds data is removed. The state is left as it is;
// with a damaged one nothing is done. Errors: Verify's.
func Repair(ctx context.Context, stateDir string, pools map[string]string) (Repaired, error) {
	done := Repaired{}

	report, err := withPools(ctx, stateDir, pools, take, func(c *comparison) error {
		if c.records.none {
			return fmt.Errorf("%s: %w: there is no state at all; nothing is removed from pools for that", stateDir, ErrNotComparable)
		}

		for _, found := range c.Findings {
			removed, err := c.fix(found)
			if err != nil {
				return fmt.Errorf("repair pool %q: %w", found.Pool, err)
			}

			if removed {
				done.Removed = append(done.Removed, found)
			} else {
				done.Left = append(done.Left, found)
			}
		}

		return nil
	})
	done.Before = report

	return done, err
}

func take(set *pool.Set) error { return set.LockAsController("touchstone state repair") }

// fix says whether what was found is gone.
func (c *comparison) fix(found Finding) (bool, error) {
	if found.Fix == "" {
		return false, nil
	}

	place, err := c.set.Get(found.Pool)

	switch {
	case err != nil:
		return false, fmt.Errorf("repair %s: %w", found.ID, err)
	case found.Kind == Scratch:
		return place.RemoveStaleScratchOf(found.ID)
	default:
		return place.RemoveEmptyOrphan(pool.Entry{ID: found.ID, Backing: found.object.Backing})
	}
}

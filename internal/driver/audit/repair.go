package audit

import (
	"context"
	"fmt"

	"github.com/touchstone-csi/touchstone/internal/pool"
)

// Repaired says what Repair did about the findings.
type Repaired struct {
	Before  Report
	Removed []Finding
	// Left are the findings without a fix, and those whose object was in use or not empty any more.
	Left []Finding
}

// Repair applies the fixes of Verify's findings in the pools, and nothing else: it removes no data
// and does not change the state. With a damaged state it does nothing. Errors: Verify's.
func Repair(ctx context.Context, stateDir string, pools map[string]string) (Repaired, error) {
	done := Repaired{}

	report, err := withPools(ctx, stateDir, pools, lockForRepair, func(c *comparison) error {
		if c.records.none {
			return fmt.Errorf("%s: %w: there is no state at all; nothing is removed from pools for that", stateDir, ErrNotComparable)
		}

		for _, found := range c.Findings {
			removed, err := c.fix(ctx, found)
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

func lockForRepair(p *pool.Inspection) error { return p.LockAsController("touchstone state repair") }

// fix applies the fix of a finding and reports whether the object is removed.
func (c *comparison) fix(ctx context.Context, found Finding) (bool, error) {
	if found.Fix == "" {
		return false, nil
	}

	options := pool.Options{KeepQuotas: true}
	// Another pool may have been mounted there since the comparison.
	if known := c.records.identities[found.Pool]; known != "" {
		options.Identity = &known
	}

	p, err := pool.Open(found.Pool, c.Compared[found.Pool], options)
	if err != nil {
		return false, fmt.Errorf("repair %s: %w", found.ID, err)
	}
	defer p.Close()

	if found.Kind == Scratch {
		return p.RemoveStaleScratchOf(found.ID)
	}

	return p.RemoveEmptyOrphan(ctx, found.object.Object)
}

// Package objects makes, enlarges and removes the pool objects of recorded volumes and snapshots, and says
// what uses them.
//
// It decides by one record and its object. It contains neither requests nor the steps of an operation.
package objects

import (
	"fmt"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// Allocate creates the volume's image or directory if it is missing.
func Allocate(v *record.Volume, p *pool.Pool) error {
	return p.Backing(v.Parameters.Backing).Create(v.ID, v.CapacityBytes, v.IsThick())
}

// AllocateDurably makes the pool object of a volume that is about to be used durable: until now a
// power failure could lose it, because CreateVolume does not sync it (docs/decisions/0005).
func AllocateDurably(v *record.Volume, p *pool.Pool) error {
	if err := Allocate(v, p); err != nil {
		return err
	}

	return p.Backing(v.Parameters.Backing).Sync(v.ID)
}

// Enlarge makes the bytes of a volume be as many as its record is about to say.
// Should the record not follow, the retry finds them there.
func Enlarge(found, larger *record.Volume, p *pool.Pool) error {
	if larger.Pristine {
		return Allocate(larger, p)
	}

	growth := pool.Growth{From: found.CapacityBytes, To: larger.CapacityBytes, Thick: larger.IsThick()}

	return p.Backing(larger.Parameters.Backing).Grow(larger.ID, growth)
}

// CheckGrowth returns OUT_OF_RANGE if the object's own filesystem cannot become as large. An object that
// is missing is reported by what grows or copies it.
func CheckGrowth(p *pool.Pool, object pool.Object, bytes int64) error {
	return errdefs.Ignore(p.Backing(object.Backing).CheckGrowth(object, bytes), pool.ErrMissing)
}

// CheckMounts returns FAILED_PRECONDITION while something is mounted below an
// object's directory: what is mounted there is not the object's.
func CheckMounts(p *pool.Pool, object pool.Object) error {
	found, err := p.Backing(object.Backing).MountsIn(object)
	if err != nil {
		return fmt.Errorf("%s: %w", object, err)
	}

	if len(found) > 0 {
		return errdefs.Errorf(errdefs.ErrFailedPrecondition, "%s is mounted at %s, in the directory of %s; unmount it first",
			found[0].Source, found[0].Path, object)
	}

	return nil
}

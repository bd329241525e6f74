package access

import (
	"context"
	"errors"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/pkg/node/device"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/node/tuning"
)

// Tune applies the mutable parameters that the pool has of a staged volume to its devices and
// its publications. Only images have any.
func (w *Ways) Tune(ctx context.Context, v *staged.Volume) error {
	wanted, err := w.Targets.pools.MutableParameters(v)
	if err != nil {
		return err
	}

	way := w.For(v)

	numbers, err := way.Devices(v)
	if err != nil {
		return err
	}

	for _, number := range numbers {
		if err := w.Targets.tuner.SetQueue(ctx, v.VolumeID, number, wanted); err != nil {
			return err
		}
	}

	for _, publication := range v.Publications {
		err := w.Targets.limit(ctx, way, v, publication, wanted)
		// A pod that has ended needs no limit; its volume is about to be unpublished.
		if err != nil && !errors.Is(err, cgroup.ErrNoPod) {
			return err
		}
	}

	return nil
}

// LimitNew sets the limits of a publication that is being made.
func (t *Targets) LimitNew(ctx context.Context, way Access, v *staged.Volume, publication staged.Publication) error {
	wanted, err := t.pools.MutableParameters(v)
	if err != nil || !tuning.HasLimits(wanted) {
		return err
	}

	if publication.Pod == "" {
		t.log.Warn("a volume with limits is published without a known pod, so that the limits do not apply",
			"volume", v.VolumeID, "target", publication.TargetPath)

		return nil
	}

	return t.limit(ctx, way, v, publication, wanted)
}

// limit sets, replaces or removes the limits of the pod that the volume is published to.
func (t *Targets) limit(ctx context.Context, way Access, v *staged.Volume, publication staged.Publication, wanted volume.Mutable) error {
	if !tuning.HasLimits(wanted) {
		return t.tuner.RemoveLimits(publication.TargetPath)
	}

	number, err := way.DeviceOf(v, publication)
	if err != nil || publication.Pod == "" || number == device.None {
		return err
	}

	return t.tuner.SetLimits(ctx, tuning.Limited{
		TargetPath: publication.TargetPath, VolumeID: v.VolumeID, Pod: publication.Pod, Number: number,
	}, wanted)
}

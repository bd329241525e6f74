package access

import (
	"context"
	"errors"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/node/tuning"
)

// Tune applies the mutable parameters that the pool has of a staged volume to its devices and
// its publications. Only images have any.
func (p *Provider) Tune(ctx context.Context, v *staged.Volume) error {
	if !v.IsImage() {
		return nil
	}

	wanted, err := p.mutableParameters(v)
	if err != nil {
		return err
	}

	numbers, err := p.For(v).Devices(v)
	if err != nil {
		return err
	}

	for _, number := range numbers {
		if err := p.config.Tuner.SetQueue(ctx, v.VolumeID, number, wanted); err != nil {
			return err
		}
	}

	for _, publication := range v.Publications {
		err := p.limit(ctx, v, publication, wanted)
		// A pod that has ended needs no limit; its volume is about to be unpublished.
		if err != nil && !errors.Is(err, cgroup.ErrNoPod) {
			return err
		}
	}

	return nil
}

// mutableParameters returns the mutable parameters that the pool has of the volume. The
// controller, which may be another process, writes them there.
func (p *Provider) mutableParameters(v *staged.Volume) (volume.Mutable, error) {
	if v.Ephemeral || !v.IsImage() {
		return volume.Mutable{}, nil
	}

	stored, err := p.PoolOf(v)
	if err != nil {
		return volume.Mutable{}, err
	}

	return stored.Attributes(v.VolumeID)
}

// tuneNew sets the queue of a device that has just been attached.
func (p *Provider) tuneNew(ctx context.Context, v *staged.Volume, number int) error {
	wanted, err := p.mutableParameters(v)
	if err != nil {
		return err
	}

	return p.config.Tuner.SetQueue(ctx, v.VolumeID, number, wanted)
}

// limitNew sets the limits of a publication that is being made.
func (p *Provider) limitNew(ctx context.Context, v *staged.Volume, publication staged.Publication) error {
	wanted, err := p.mutableParameters(v)
	if err != nil || !tuning.HasLimits(wanted) {
		return err
	}

	if publication.Pod == "" {
		p.config.Log.Warn("a volume with limits is published without a known pod, so that the limits do not apply",
			"volume", v.VolumeID, "target", publication.TargetPath)

		return nil
	}

	return p.limit(ctx, v, publication, wanted)
}

// limit sets, replaces or removes the limits of the pod that the volume is published to.
func (p *Provider) limit(ctx context.Context, v *staged.Volume, publication staged.Publication, wanted volume.Mutable) error {
	if !tuning.HasLimits(wanted) {
		return p.config.Tuner.RemoveLimits(publication.TargetPath)
	}

	number, err := p.For(v).DeviceOf(v, publication)
	if err != nil || publication.Pod == "" || number == NoDevice {
		return err
	}

	return p.config.Tuner.SetLimits(ctx, tuning.Limited{
		TargetPath: publication.TargetPath, VolumeID: v.VolumeID, Pod: publication.Pod, Number: number,
	}, wanted)
}

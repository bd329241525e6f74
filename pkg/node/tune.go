package node

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/node/tuning"
	"github.com/touchstone-csi/touchstone/pkg/operation"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// CheckSupported returns cgroup.ErrUnsupported if this machine cannot do what wanted says.
func (s *Service) CheckSupported(wanted volume.Mutable) error { return s.tuner.CheckSupported(wanted) }

// ApplyAttributes applies the mutable parameters that the pool has of a volume, if the volume is in
// use on this node. The caller must be in an operation on the volume.
func (s *Service) ApplyAttributes(ctx context.Context, volumeID string) error {
	s.checker.Changed(volumeID)

	use, known := s.stagedVolumes.Get(volumeID)
	if !known || !use.IsImage() {
		return nil
	}

	wanted, err := s.mutableParameters(use)
	if err != nil {
		return err
	}

	numbers, err := s.numbers(use)
	if err != nil {
		return err
	}

	for _, number := range numbers {
		if err := s.tuner.SetQueue(ctx, volumeID, number, wanted); err != nil {
			return err
		}
	}

	for _, publication := range use.Publications {
		err := s.limit(ctx, use, publication, wanted)
		// A pod that has ended needs no limit; its volume is about to be unpublished.
		if err != nil && !errors.Is(err, cgroup.ErrNoPod) {
			return err
		}
	}

	return nil
}

// refresh is ApplyAttributes as an operation of its own. Occasion makes its key unique: it must not
// join an operation that may have read the attributes already.
func (s *Service) refresh(ctx context.Context, volumeID string, occasion int) error {
	call := rpc.VolumeCall(volumeID, "attributes "+strconv.Itoa(occasion), "refresh", nil)

	_, err := operation.Do(ctx, s.ops, call, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.ApplyAttributes(ctx, volumeID)
	})

	return err
}

// mutableParameters returns the mutable parameters that the pool has of the volume. The
// pool is where a controller in another process writes them.
func (s *Service) mutableParameters(use *staged.Volume) (volume.Mutable, error) {
	if use.Ephemeral || !use.IsImage() {
		return volume.Mutable{}, nil
	}

	place, err := s.poolOf(use)
	if err != nil {
		return volume.Mutable{}, err
	}

	return place.Attributes(use.VolumeID)
}

// tuneNew sets the queue of a device that has just been attached.
func (s *Service) tuneNew(ctx context.Context, use *staged.Volume, number int) error {
	wanted, err := s.mutableParameters(use)
	if err != nil {
		return err
	}

	return s.tuner.SetQueue(ctx, use.VolumeID, number, wanted)
}

// limitNew sets the limits of a publication that is being made.
func (s *Service) limitNew(ctx context.Context, use *staged.Volume, publication staged.Publication) error {
	wanted, err := s.mutableParameters(use)
	if err != nil || !tuning.HasLimits(wanted) {
		return err
	}

	if publication.Pod == "" {
		s.config.Log.Warn("a volume with limits is published without a known pod, so that the limits do not apply",
			"volume", use.VolumeID, "target", publication.TargetPath)

		return nil
	}

	return s.limit(ctx, use, publication, wanted)
}

// limit sets, replaces or removes the limits of the pod that the volume is published to.
func (s *Service) limit(ctx context.Context, use *staged.Volume, publication staged.Publication, wanted volume.Mutable) error {
	if !tuning.HasLimits(wanted) {
		return s.tuner.RemoveLimits(publication.TargetPath)
	}

	number, err := s.numberOf(use, publication)
	if err != nil || publication.Pod == "" || number == none {
		return err
	}

	return s.tuner.SetLimits(ctx, tuning.Limited{
		TargetPath: publication.TargetPath, VolumeID: use.VolumeID, Pod: publication.Pod, Number: number,
	}, wanted)
}

// recoverTuning resets the queues and limits that are not needed any more.
func (s *Service) recoverTuning() {
	s.tuner.Recover(
		func(volumeID, targetPath string) bool {
			use, known := s.stagedVolumes.Get(volumeID)
			if known {
				_, known = use.PublicationAt(targetPath)
			}

			return known
		},
		func(number int) (bool, error) {
			_, attached, err := s.loops.Status(number)

			return attached, err
		})
}

// forget drops the record of a volume that is not used here any more, and resets the queue
// of a device that another program detached.
func (s *Service) forget(use *staged.Volume) error {
	s.tuner.ResetQueues(use.VolumeID)

	return s.stagedVolumes.DeleteLazily(use.VolumeID)
}

// numbers are the loop devices that the volume is used through.
func (s *Service) numbers(use *staged.Volume) ([]int, error) {
	if use.ExposesRawDevice() {
		known, err := s.devices.get(use.VolumeID)

		return slices.DeleteFunc([]int{known.staged, known.readOnly}, func(number int) bool { return number == none }), err
	}

	point, mounted, err := s.mountAt(use.StagingPath)
	if err != nil || !mounted {
		return nil, err
	}

	attachment, ok, err := s.attachmentOf(use, point)
	if err != nil || !ok {
		return nil, err
	}

	return []int{attachment.Number}, nil
}

// numberOf is the loop device that a publication of the volume goes through.
func (s *Service) numberOf(use *staged.Volume, publication staged.Publication) (int, error) {
	if use.ExposesRawDevice() && publication.ReadOnly && !use.IsReadOnly() {
		known, err := s.devices.get(use.VolumeID)

		return known.readOnly, err
	}

	numbers, err := s.numbers(use)
	if err != nil || len(numbers) == 0 {
		return none, err
	}

	return numbers[0], nil
}

func loopName(number int) string { return "loop" + strconv.Itoa(number) }

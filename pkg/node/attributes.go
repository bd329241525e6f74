package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/operation"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// attributes puts in force what ControllerModifyVolume has written into the
// pool, which is the one place that controller and nodes both see: the queue of
// a volume's device, and the limits of the pods that it is published to.
type attributes struct {
	queues  *cgroup.Queues
	limiter *cgroup.Limiter
	// tuned and limited tell what has to be undone. A record is there before
	// its device or pod is touched.
	tuned   *staged.Records[*Tuned]
	limited *staged.Records[*Limited]
}

// Tuned is a loop device that was given an I/O scheduler. Its number keeps that
// when the image goes, so it is given back what it had.
type Tuned struct {
	Number    int    `json:"number"`
	VolumeID  string `json:"volumeId"`
	Scheduler string `json:"scheduler"`
}

func (t *Tuned) RecordID() string { return strconv.Itoa(t.Number) }

// Limited is a pod whose use of a volume at a target path is limited.
type Limited struct {
	TargetPath string `json:"targetPath"`
	VolumeID   string `json:"volumeId"`
	Pod        string `json:"pod"`
	Number     int    `json:"number"`
}

func (l *Limited) RecordID() string { return l.TargetPath }

func (l *Limited) device() cgroup.Device {
	return cgroup.Device{Major: loopMajor, Minor: uint32(l.Number)}
}

func newAttributes(config Config, store *state.Store) *attributes {
	return &attributes{
		queues: cgroup.NewQueues(cgroup.DefaultSysBlock), limiter: cgroup.NewLimiter(config.CgroupRoot, config.Log),
		tuned: staged.NewRecords[*Tuned](store, "tuned"), limited: staged.NewRecords[*Limited](store, "limited"),
	}
}

// Feasible returns cgroup.ErrInfeasible when this machine can't do what wanted
// says.
func (s *Service) Feasible(wanted volume.Mutable) error {
	if wanted.IOScheduler != "" {
		if err := s.attributes.queues.CheckScheduler(wanted.IOScheduler); err != nil {
			return fmt.Errorf("%s: %w", volume.KeyIOScheduler, err)
		}
	}

	if limitsOf(wanted) == (cgroup.Limits{}) {
		return nil
	}

	if err := s.attributes.limiter.Check(); err != nil {
		return fmt.Errorf("limits: %w", err)
	}

	return nil
}

// Refresh does what a volume's attributes in the pool say now, if it is in use
// here. The caller is within an operation on the volume.
func (s *Service) Refresh(ctx context.Context, volumeID string) error {
	s.schedule.changed(volumeID)

	use, known := s.stagedVolumes.Get(volumeID)
	if !known || !use.IsImage() {
		return nil
	}

	wanted, err := s.wanted(use)
	if err != nil {
		return err
	}

	numbers, err := s.numbers(use)
	if err != nil {
		return err
	}

	for _, number := range numbers {
		if err := s.tune(ctx, use, number, wanted); err != nil {
			return err
		}
	}

	for _, publication := range use.Publications {
		err := s.limit(ctx, use, publication, wanted)
		// A pod that has ended needs no limit; its volume is about to follow.
		if err != nil && !errors.Is(err, cgroup.ErrNoPod) {
			return err
		}
	}

	return nil
}

// refresh is Refresh as an operation of its own. Occasion tells it from others:
// it must not join one that may have read the attributes already.
func (s *Service) refresh(ctx context.Context, volumeID string, occasion int) error {
	call := rpc.OnVolume(volumeID, "attributes "+strconv.Itoa(occasion), "refresh", nil)

	_, err := operation.Do(ctx, s.ops, call, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.Refresh(ctx, volumeID)
	})

	return err
}

// wanted returns what shall hold for the volume.
func (s *Service) wanted(use *staged.Volume) (volume.Mutable, error) {
	if use.Ephemeral || !use.IsImage() {
		return volume.Mutable{}, nil
	}

	place, err := s.poolOf(use)
	if err != nil {
		return volume.Mutable{}, err
	}

	return place.Attributes(use.VolumeID)
}

// limitNew is limit for a publication that is being made.
func (s *Service) limitNew(ctx context.Context, use *staged.Volume, publication staged.Publication) error {
	wanted, err := s.wanted(use)
	if err != nil || limitsOf(wanted) == (cgroup.Limits{}) {
		return err
	}

	if publication.Pod == "" {
		s.config.Log.Warn("a volume with limits is published, but not to a pod: they hold for nobody",
			"volume", use.VolumeID, "target", publication.TargetPath)

		return nil
	}

	return s.limit(ctx, use, publication, wanted)
}

// tuneNew is tune for a device that has just been attached.
func (s *Service) tuneNew(ctx context.Context, use *staged.Volume, number int) error {
	wanted, err := s.wanted(use)
	if err != nil {
		return err
	}

	return s.tune(ctx, use, number, wanted)
}

// tune sets the queue of one of the volume's devices.
func (s *Service) tune(ctx context.Context, use *staged.Volume, number int, wanted volume.Mutable) error {
	// A number can come back from a volume whose end nobody saw.
	if left, ok := s.attributes.tuned.Get(strconv.Itoa(number)); ok && left.VolumeID != use.VolumeID {
		s.untune(left)
	}

	queue := queueOf(wanted)
	if queue == cgroup.Unchanged() {
		return nil
	}

	if err := s.keepScheduler(ctx, use, number, queue.Scheduler); err != nil {
		return err
	}

	if _, err := s.attributes.queues.Set(loopName(number), queue); err != nil {
		return fmt.Errorf("mutable parameters of volume %s: %w", use.VolumeID, err)
	}

	return nil
}

// keepScheduler writes down what the device has before it gets another.
func (s *Service) keepScheduler(ctx context.Context, use *staged.Volume, number int, wanted string) error {
	if _, kept := s.attributes.tuned.Get(strconv.Itoa(number)); kept || wanted == "" {
		return nil
	}

	now, err := s.attributes.queues.Get(loopName(number))
	if err != nil || now.Scheduler == wanted {
		return err
	}

	return s.attributes.tuned.Put(ctx, &Tuned{Number: number, VolumeID: use.VolumeID, Scheduler: now.Scheduler})
}

// untune gives a device the scheduler back that it had, and forgets it. The
// volume does not depend on it, so failing is only told.
func (s *Service) untune(left *Tuned) {
	_, err := s.attributes.queues.Set(loopName(left.Number), cgroup.Queue{ReadAheadKiB: -1, Scheduler: left.Scheduler})
	if err == nil {
		err = s.attributes.tuned.DeleteLazily(left.RecordID())
	}

	if err != nil {
		s.config.Log.Warn("a loop device keeps the I/O scheduler of a volume that has left it",
			"device", loopName(left.Number), "volume", left.VolumeID, "error", err)
	}
}

// releaseQueue undoes tune before the device is given back.
func (s *Service) releaseQueue(use *staged.Volume, number int) {
	if left, ok := s.attributes.tuned.Get(strconv.Itoa(number)); ok && left.VolumeID == use.VolumeID {
		s.untune(left)
	}
}

// forget drops the record of a volume that is not used here any more, and what
// a device has kept of it whose end nobody saw.
func (s *Service) forget(use *staged.Volume) error {
	for _, left := range s.attributes.tuned.All() {
		if left.VolumeID == use.VolumeID {
			s.untune(left)
		}
	}

	return s.stagedVolumes.DeleteLazily(use.VolumeID)
}

// limit sets the limits of the pod that the volume is published to, replaces
// them, or takes them away.
func (s *Service) limit(ctx context.Context, use *staged.Volume, publication staged.Publication, wanted volume.Mutable) error {
	limits := limitsOf(wanted)
	if limits == (cgroup.Limits{}) {
		return s.unlimit(publication)
	}

	number, err := s.numberOf(use, publication)
	if err != nil || publication.Pod == "" || number == none {
		return err
	}

	limited := &Limited{
		TargetPath: publication.TargetPath, VolumeID: use.VolumeID, Pod: publication.Pod, Number: number,
	}

	if known, ok := s.attributes.limited.Get(limited.RecordID()); !ok || *known != *limited {
		if err := s.attributes.limited.Put(ctx, limited); err != nil {
			return err
		}
	}

	if err := s.attributes.limiter.Set(limited.Pod, limited.device(), limits); err != nil {
		return fmt.Errorf("mutable parameters of volume %s: pod %s: %w", use.VolumeID, limited.Pod, err)
	}

	return nil
}

// unlimit takes the limits away that a publication has brought, unless the pod
// has the volume at another path, too.
func (s *Service) unlimit(publication staged.Publication) error {
	limited, ok := s.attributes.limited.Get(publication.TargetPath)
	if !ok {
		return nil
	}

	if !s.limitedElsewhere(limited) {
		if err := s.attributes.limiter.Remove(limited.Pod, limited.device()); err != nil {
			return fmt.Errorf("limits of volume %s for pod %s: %w", limited.VolumeID, limited.Pod, err)
		}
	}

	return s.attributes.limited.DeleteLazily(limited.RecordID())
}

func (s *Service) limitedElsewhere(limited *Limited) bool {
	use, known := s.stagedVolumes.Get(limited.VolumeID)
	if !known {
		return false
	}

	for _, publication := range use.Publications {
		other, ok := s.attributes.limited.Get(publication.TargetPath)
		if ok && other != limited && other.Pod == limited.Pod && other.Number == limited.Number {
			return true
		}
	}

	return false
}

// recoverAttributes puts in force again what a restart may have missed, and
// undoes what nobody needs any more.
func (s *Service) recoverAttributes() {
	for _, left := range s.attributes.limited.All() {
		use, known := s.stagedVolumes.Get(left.VolumeID)
		if known {
			_, known = use.PublicationAt(left.TargetPath)
		}

		if known {
			continue
		}

		if err := s.unlimit(staged.Publication{TargetPath: left.TargetPath}); err != nil {
			s.config.Log.Error("a pod keeps the limits of a volume that it has no more", "pod", left.Pod, "error", err)
		}
	}

	for _, left := range s.attributes.tuned.All() {
		if _, attached, err := s.loops.Status(left.Number); err == nil && !attached {
			s.untune(left)
		}
	}
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

func queueOf(wanted volume.Mutable) cgroup.Queue {
	queue := cgroup.Unchanged()
	queue.Scheduler = wanted.IOScheduler

	if wanted.ReadAheadKiB != nil {
		queue.ReadAheadKiB = *wanted.ReadAheadKiB
	}

	return queue
}

func limitsOf(wanted volume.Mutable) cgroup.Limits {
	value := func(limit *int64) int64 {
		if limit == nil {
			return 0
		}

		return *limit
	}

	return cgroup.Limits{
		ReadBytesPerSecond: value(wanted.ReadBytesPerSecond), WriteBytesPerSecond: value(wanted.WriteBytesPerSecond),
		ReadIOPS: value(wanted.ReadIOPS), WriteIOPS: value(wanted.WriteIOPS),
	}
}

func loopName(number int) string { return "loop" + strconv.Itoa(number) }

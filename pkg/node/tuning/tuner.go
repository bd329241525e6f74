package tuning

import (
	"fmt"
	"log/slog"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/internal/linux/queue"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// Tuner sets queues and limits and records what has to be reset. It is safe for concurrent
// use; the calls for one volume must come one after the other.
type Tuner struct {
	queues  *queue.Queues
	limiter *cgroup.Limiter
	log     *slog.Logger
	// schedulers and limited have what has to be reset. A record is stored before its device or
	// pod is changed.
	schedulers *staged.Records[*ChangedScheduler]
	limited    *staged.Records[*Limited]
}

// New returns a Tuner that keeps its records in store, which must not be open yet.
func New(queues *queue.Queues, limiter *cgroup.Limiter, store *state.Store, log *slog.Logger) *Tuner {
	return &Tuner{
		queues: queues, limiter: limiter, log: log,
		schedulers: NewSchedulerRecords(store), limited: NewLimitedRecords(store),
	}
}

// NewSchedulerRecords registers the collection of changed devices in store, which must not be open yet.
func NewSchedulerRecords(store *state.Store) *staged.Records[*ChangedScheduler] {
	return staged.NewRecords[*ChangedScheduler](store, "tuned")
}

// NewLimitedRecords registers the collection of limited pods in store, which must not be open yet.
func NewLimitedRecords(store *state.Store) *staged.Records[*Limited] {
	return staged.NewRecords[*Limited](store, "limited")
}

// Load reads the records. It must be called once, after the store is opened.
func (t *Tuner) Load() {
	t.schedulers.Load()
	t.limited.Load()
}

// Close stops watching the cgroups of limited pods. All queues and limits stay as they are.
func (t *Tuner) Close() error { return t.limiter.Close() }

// CheckSupported returns cgroup.ErrUnsupported if this machine cannot do what wanted says.
func (t *Tuner) CheckSupported(wanted volume.Mutable) error {
	if scheduler, named := wanted[volume.KeyIOScheduler]; named {
		if err := t.queues.CheckScheduler(scheduler); err != nil {
			return fmt.Errorf("%s: %w", volume.KeyIOScheduler, err)
		}
	}

	if !HasLimits(wanted) {
		return nil
	}

	if _, err := t.limiter.Support(); err != nil {
		return fmt.Errorf("limits: %w", err)
	}

	return nil
}

// Recover resets what is not needed any more: limits of publications that do not exist,
// and the schedulers of devices that no image is attached to.
func (t *Tuner) Recover(isPublished func(volumeID, targetPath string) bool, isAttached func(number int) (bool, error)) {
	for _, limited := range t.limited.All() {
		if isPublished(limited.VolumeID, limited.TargetPath) {
			continue
		}

		if err := t.RemoveLimits(limited.TargetPath); err != nil {
			t.log.Error("a pod keeps the limits of a volume that it does not use any more",
				"pod", limited.Pod, "volume", limited.VolumeID, "error", err)
		}
	}

	for _, changed := range t.schedulers.All() {
		if attached, err := isAttached(changed.Number); err == nil && !attached {
			t.resetQueue(changed)
		}
	}
}

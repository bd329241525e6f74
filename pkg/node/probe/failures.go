package probe

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// failedStagingHold is for how long a failed staging is a condition unless the CO repeats it. A
// kubelet repeats it at least every two minutes, for as long as a pod needs the volume.
const failedStagingHold = 10 * time.Minute

// failedStaging is the last staging of a volume, which has failed because of the volume.
type failedStaging struct {
	volume *staged.Volume
	cause  error
	at     time.Time
}

// failedStagings has them by the ids of the volumes. It is in memory only: after a restart the CO
// repeats its call.
type failedStagings struct {
	mu       sync.Mutex
	byVolume map[string]failedStaging
}

func newFailedStagings() *failedStagings {
	return &failedStagings{byVolume: map[string]failedStaging{}}
}

// get returns false for a staging that the CO has given up. Only the next start repeats that of a persistent
// publication.
func (f *failedStagings) get(id string) (failedStaging, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()

	found, ok := f.byVolume[id]
	if ok && time.Since(found.at) >= failedStagingHold && len(found.volume.Persistent) == 0 {
		delete(f.byVolume, id)

		return failedStaging{}, false
	}

	return found, ok
}

func (f *failedStagings) add(failed failedStaging) {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.byVolume[failed.volume.VolumeID] = failed
}

// forget drops what failed until then: a probe knows nothing about a later staging.
func (f *failedStagings) forget(id string, until time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()

	if found, ok := f.byVolume[id]; ok && !found.at.After(until) {
		delete(f.byVolume, id)
	}
}

func (f *failedStagings) ids() []string {
	f.mu.Lock()
	defer f.mu.Unlock()

	ids := make([]string, 0, len(f.byVolume))
	for id := range f.byVolume {
		ids = append(ids, id)
	}

	return ids
}

// StagingFailed records why the volume could not be staged, unless the cause is the request or a
// temporary one. It is a condition until a staging succeeds or a probe contradicts it.
func (p *Prober) StagingFailed(v *staged.Volume, cause error) {
	temporary := []error{
		errdefs.ErrInvalidArgument, errdefs.ErrAlreadyExists, errdefs.ErrAborted, errdefs.ErrUnavailable,
		context.Canceled, context.DeadlineExceeded,
	}
	if slices.Contains(temporary, errdefs.Category(cause)) {
		return
	}

	p.failures.add(failedStaging{volume: v, cause: cause, at: time.Now()})
	p.monitor.Suspect(v.VolumeID)
}

// NotWanted records that a volume that could not be staged is not to be.
func (p *Prober) NotWanted(id string) { p.failures.forget(id, time.Now()) }

// message returns the cause without what the reader knows: messages are short.
func (f failedStaging) message() string {
	return strings.ReplaceAll(f.cause.Error(), "volume "+f.volume.VolumeID+": ", "")
}

// whyUnmounted returns why the last start could not make a persistent mount, or that it is not there any more.
func (f *failedStagings) whyUnmounted(id string, expected expectedMount) string {
	if failed, ok := f.get(id); ok && expected.isPersistent {
		return failed.message()
	}

	return unmounted
}

// addFailedStaging adds that the volume could not be staged, unless a worse or equal condition
// explains that, or this probe contradicts it.
func (s *probeState) addFailedStaging() {
	failed, ok := s.prober.failures.get(s.view.id)
	if !ok {
		return
	}

	s.probeAgainAfter(time.Until(failed.at.Add(failedStagingHold)))

	explains := func(entry health.Entry) bool { return entry.Status >= health.StagingFailed.Status() }

	switch {
	case slices.ContainsFunc(s.entries, explains):
	case failed.isOver(s.view.check):
		s.prober.failures.forget(s.view.id, failed.at)
	default:
		s.add(health.StagingFailed, "it cannot be staged: "+failed.message())
	}
}

// isOver reports whether what made the staging fail is over: the probe has found the whole
// image, or a later check a clean filesystem.
func (f failedStaging) isOver(check *fsck.Result) bool {
	if errors.Is(f.cause, pool.ErrMissing) || errors.Is(f.cause, filesystem.ErrTruncated) {
		return true
	}

	return check != nil && check.CleanAt.After(f.at)
}

package node

import (
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/pool/layout"
)

// DefaultIOErrorHold is how long a volume's last I/O error is a condition of it.
const DefaultIOErrorHold = 10 * time.Minute

// viewName says whose view it is.
const viewName = "node"

// Health is what the node knows of the health of the volumes in use on it, and of
// those whose filesystem it has found damaged.
func (s *Service) Health() *health.Monitor { return s.monitor }

// relisted are the subjects of a relist.
func (s *Service) relisted() []string {
	s.checker.ChangedPool("")

	return s.subjects()
}

func (s *Service) newMonitor() *health.Monitor {
	return health.New(s.config.Health.With(health.Config{
		Name: viewName, List: s.relisted, Probe: s.probe,
		Concern: s.concern, Sources: s.config.Sources, Log: s.config.Log,
	}))
}

// subject is a volume that there is something to say about.
type subject struct {
	// id is the CO's, and use nil where the volume is not in use here.
	id  string
	use *staged.Volume
	// record is what use was made of: another one says that an operation has
	// changed it.
	record staged.Record
	// check is nil where nothing was checked yet.
	check *fsck.Record
}

// subject returns false where there is nothing to say about a volume.
func (s *Service) subject(id string) (subject, bool) {
	found := subject{id: id}
	found.check = s.checker.Get(id)

	if use, ok := s.stagedVolumes.Get(id); ok {
		found.use, found.record = use, use

		return found, true
	}

	if inline, ok := s.inline.Get(id); ok {
		found.use, found.record = inline.use(), inline

		return found, true
	}

	damaged := found.check != nil && found.check.Verdict == fsck.VerdictDamaged

	return found, damaged || s.failing(s.evidence.of(id).ioErrorAt) > 0
}

// subjects lists them.
func (s *Service) subjects() []string {
	var ids []string

	for _, use := range s.stagedVolumes.All() {
		ids = append(ids, use.VolumeID)
	}

	for _, inline := range s.inline.All() {
		ids = append(ids, inline.VolumeID)
	}

	for _, check := range s.checker.All() {
		if check.Verdict == fsck.VerdictDamaged {
			ids = append(ids, check.VolumeID)
		}
	}

	ids = append(ids, s.evidence.failing()...)
	slices.Sort(ids)

	// A staging that fails over and over has left more than one trace.
	ids = slices.Compact(ids)

	return slices.DeleteFunc(ids, func(id string) bool {
		_, ok := s.subject(id)

		return !ok
	})
}

// ended has the volume looked at, once an operation that has changed something
// about it is over.
func (s *Service) ended(id string) {
	if _, ok := s.subject(id); ok {
		s.monitor.Suspect(id)

		return
	}

	s.monitor.Forget(id)
}

// leave forgets a volume whose use has come to its end, and not to a failure: what
// was the matter with it here is over. What was known of it is dropped behind its
// record, so that no look under way brings it back.
func (s *Service) leave(use *staged.Volume) error {
	defer s.evidence.forget(use.VolumeID)

	return s.forget(use)
}

// concern returns the volumes that an event is about, and keeps what no look can
// see again.
func (s *Service) concern(event health.Event) []string {
	switch event.Kind {
	case health.IOError:
		return s.evidence.ioError(event)
	case health.DeviceChanged:
		return s.evidence.atDevice(event.Device)
	case health.FilesystemError:
		return s.evidence.inFilesystem(event.Filesystem)
	case health.MountsChanged:
		return s.remounted()
	case health.FileChanged:
		s.checker.ChangedImage(strings.TrimSuffix(filepath.Base(event.Path), layout.ImageSuffix))

		return s.named(event.Path)
	case health.FileWritten:
		return s.written(event)
	case health.Lost:
	}

	return nil
}

func (s *Service) inUse(id string) bool {
	found, ok := s.subject(id)

	return ok && found.use != nil
}

// named is the volume that there is something to say about whose bytes are, or
// were, at the path.
func (s *Service) named(path string) []string {
	content, _ := strings.CutSuffix(filepath.Base(path), layout.ImageSuffix)

	id := s.evidence.volume(content)
	if _, ok := s.subject(id); ok {
		return []string{id}
	}

	return nil
}

// written is the volume whose image is attached here and was written, unless an
// operation is doing that.
func (s *Service) written(event health.Event) []string {
	ids := s.named(event.Path)
	if len(ids) == 0 || s.ops.Busy(operationsOn(ids[0])) {
		return ids
	}

	s.evidence.written(ids[0], event.At)

	return ids
}

// operationsOn is the key that all operations on a volume have (rpc.VolumeCall).
func operationsOn(id string) string { return "volume " + id }

// remounted returns the volumes whose mounts are not any more as they were last
// seen.
func (s *Service) remounted() []string {
	points, err := mount.List()
	if err != nil {
		s.config.Log.Warn("looking at all volumes, as the mount table could not be read", "error", err)

		return s.subjects()
	}

	return s.evidence.otherThan(points)
}

// failing is for how long an I/O error of that time is still a condition.
func (s *Service) failing(last time.Time) time.Duration {
	if last.IsZero() {
		return 0
	}

	return max(0, s.config.IOErrorHold-time.Since(last))
}

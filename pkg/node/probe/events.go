package probe

import (
	"path/filepath"
	"strings"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

// volumesAffectedBy returns the volumes to probe after an event, and records what no probe
// can observe later.
func (p *Prober) volumesAffectedBy(event health.Event) []string {
	switch event.Kind {
	case health.IOError:
		return p.observations.recordIOError(event)
	case health.DeviceChanged, health.FilesystemShutdown:
		return p.observations.atDevice(event.Device)
	case health.FilesystemError:
		return p.observations.inFilesystem(event.Filesystem)
	case health.MountsChanged:
		return p.withChangedMounts()
	case health.FileChanged:
		p.config.Checker.ChangedImage(objectName(event.Path))

		return p.volumeAt(event.Path)
	case health.FileWritten:
		return p.writtenVolume(event)
	case health.Lost:
	}

	return nil
}

// objectName returns the name of a pool object.
func objectName(path string) string {
	return strings.TrimSuffix(filepath.Base(path), layout.ImageSuffix)
}

// volumeAt returns the volume whose pool object is or was at the path, if it has a view.
func (p *Prober) volumeAt(path string) []string {
	id := p.config.Volumes.OfObject(objectName(path))
	if _, ok := p.view(id); ok {
		return []string{id}
	}

	return nil
}

// writtenVolume returns the volume whose image was written, and records the write unless an
// operation on the volume makes it.
func (p *Prober) writtenVolume(event health.Event) []string {
	ids := p.volumeAt(event.Path)
	if len(ids) == 0 || p.isBusy(ids[0]) {
		return ids
	}

	p.observations.recordWrite(ids[0], event.At)

	return ids
}

// isBusy reports whether an operation on the volume is running or waiting.
func (p *Prober) isBusy(id string) bool { return p.config.Operations.Busy(OperationKey(id)) }

// OperationKey returns the key that all operations on a volume have (operation.VolumeCall).
func OperationKey(id string) string { return "volume " + id }

// withChangedMounts returns the volumes whose mounts differ from their last observation.
func (p *Prober) withChangedMounts() []string {
	points, err := mount.List()
	if err != nil {
		p.config.Log.Warn("cannot read the mount table; probing all volumes", "error", err)

		return p.ids()
	}

	return p.observations.withChangedMounts(points)
}

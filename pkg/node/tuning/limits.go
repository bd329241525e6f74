package tuning

import (
	"context"
	"fmt"
	"slices"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Limited is the record of a pod whose use of a volume at one target path is limited.
type Limited struct {
	TargetPath string `json:"targetPath"`
	VolumeID   string `json:"volumeId"`
	Pod        string `json:"pod"`
	Number     int    `json:"number"`
}

// RecordID returns the key of the record in the store.
func (l *Limited) RecordID() string { return l.TargetPath }

// Check implements [staged.Record].
func (l *Limited) Check() error {
	if l.Pod == "" || l.Number < 0 {
		return fmt.Errorf("%w: pod %q, number %d", staged.ErrRecord, l.Pod, l.Number)
	}

	return volume.CheckID(l.VolumeID)
}

func (l *Limited) device() cgroup.Device {
	return cgroup.Device{Major: loop.Major, Minor: uint32(l.Number)}
}

// HasLimits reports whether wanted limits any I/O.
func HasLimits(wanted volume.Mutable) bool { return limitsOf(wanted) != cgroup.Limits{} }

// SetLimits sets or replaces the limits of a pod that a volume is published to. Without
// limits in wanted use RemoveLimits.
func (t *Tuner) SetLimits(ctx context.Context, limited Limited, wanted volume.Mutable) error {
	if recorded, ok := t.limited.Get(limited.RecordID()); !ok || *recorded != limited {
		if err := t.limited.PutUnsynced(ctx, &limited); err != nil {
			return err
		}
	}

	if err := t.limiter.Set(limited.Pod, limited.device(), limitsOf(wanted)); err != nil {
		return fmt.Errorf("mutable parameters of volume %s: pod %s: %w", limited.VolumeID, limited.Pod, err)
	}

	return nil
}

// RemoveLimits removes the limits of the publication at the target path, unless the same
// pod has the same device at another path, too.
func (t *Tuner) RemoveLimits(targetPath string) error {
	limited, ok := t.limited.Get(targetPath)
	if !ok {
		return nil
	}

	isShared := slices.ContainsFunc(t.limited.All(), func(other *Limited) bool {
		return other.TargetPath != targetPath && other.VolumeID == limited.VolumeID &&
			other.Pod == limited.Pod && other.Number == limited.Number
	})
	if !isShared {
		if err := t.limiter.Remove(limited.Pod, limited.device()); err != nil {
			return fmt.Errorf("limits of volume %s for pod %s: %w", limited.VolumeID, limited.Pod, err)
		}
	}

	return t.limited.DeleteLazily(limited.RecordID())
}

func limitsOf(wanted volume.Mutable) cgroup.Limits {
	return cgroup.Limits{
		ReadBytesPerSecond:  wanted.Number(volume.KeyReadBytesPerSecond),
		WriteBytesPerSecond: wanted.Number(volume.KeyWriteBytesPerSecond),
		ReadIOPS:            wanted.Number(volume.KeyReadIOPS),
		WriteIOPS:           wanted.Number(volume.KeyWriteIOPS),
	}
}

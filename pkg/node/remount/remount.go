// Package remount publishes volumes again at a start of the driver, where their publication is persistent:
// the CO that published them, a person, does not repeat its calls.
//
// It decides what has to be published, in which order, and when not. How a volume is staged and published is
// package node's (Lifecycle).
package remount

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/persistent"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// parentMode is the mode of the directories above a mount point, which the CO makes otherwise.
const parentMode = 0o755

// Config is what the persistent mounts depend on.
type Config struct {
	Volumes *staged.Records[*staged.Volume]
	Dirs    *mount.AllowedDirs
	Prober  Prober
	// Lifecycle stages and publishes the volumes.
	Lifecycle Lifecycle
	// Do runs a function as an operation on a volume, which ends with ctx.
	Do  func(ctx context.Context, volumeID, method string, do func(context.Context) error) error
	Log *slog.Logger
}

// Lifecycle stages and publishes volumes, in an operation on them (package node).
type Lifecycle interface {
	// IsPublished reports whether the publication exists.
	IsPublished(v *staged.Volume, at staged.Publication) (bool, error)
	Stage(ctx context.Context, v *staged.Volume) error
	Publish(ctx context.Context, volumeID, stagingPath string, wanted staged.Publication) error
}

// Prober is what the mounts are reported to (package probe).
type Prober interface {
	// StagingFailed reports why a volume cannot be mounted, StagedOrPublished that it is, and NotWanted that
	// it is not to be.
	StagingFailed(v *staged.Volume, cause error)
	StagedOrPublished(volumeID string)
	NotWanted(volumeID string)
	// ProbeAfterOperation probes a volume.
	ProbeAfterOperation(volumeID string)
}

// Mounts are the persistent mounts of a node.
type Mounts struct{ config Config }

// New returns them.
func New(config Config) *Mounts { return &Mounts{config} }

// Set makes the publication at the target path persistent, or ends that. It is durable when Set returns. Error:
// FAILED_PRECONDITION for a volume that is not published there.
func (m *Mounts) Set(ctx context.Context, request persistent.Request) error {
	return m.config.Do(ctx, request.VolumeID, "set persistent", func(ctx context.Context) error {
		if !request.Persistent {
			return End(ctx, m.config.Volumes, m.config.Prober, request.VolumeID, request.TargetPath)
		}

		if v, known := m.config.Volumes.Get(request.VolumeID); known {
			if published, ok := v.PublicationAt(request.TargetPath); ok {
				return m.config.Volumes.Put(ctx, v.WithPersistent(published))
			}
		}

		return errdefs.Errorf(errdefs.ErrFailedPrecondition, "volume %s is not published at %s; publish it there first",
			request.VolumeID, request.TargetPath)
	})
}

// End ends that the publication at the target path is persistent, before the volume is unpublished: after that
// no start may publish it again. The caller, who may be below Mounts, is in an operation on the volume.
func End(ctx context.Context, volumes *staged.Records[*staged.Volume], prober Prober, volumeID, targetPath string) error {
	v, known := volumes.Get(volumeID)
	if !known || !v.IsPersistentAt(targetPath) {
		return nil
	}

	prober.NotWanted(v.VolumeID)

	return volumes.Put(ctx, v.WithoutPersistent(targetPath))
}

// PublishAll makes the persistent mounts of a pool's volumes that are missing. One that fails is logged, is a
// condition of its volume, and keeps no other from being made.
func (m *Mounts) PublishAll(ctx context.Context, poolName string) {
	type missing struct {
		volumeID string
		wanted   staged.Publication
	}

	var all []missing

	for _, v := range m.config.Volumes.All() {
		for _, wanted := range v.Persistent {
			if v.Parameters.Pool == poolName {
				all = append(all, missing{v.VolumeID, wanted})
			}
		}
	}

	// A volume that is mounted in another one follows it.
	slices.SortFunc(all, func(a, b missing) int { return strings.Compare(a.wanted.TargetPath, b.wanted.TargetPath) })

	for _, each := range all {
		err := m.config.Do(ctx, each.volumeID, "publish again", func(ctx context.Context) error {
			v, known := m.config.Volumes.Get(each.volumeID)
			if !known || !v.IsPersistentAt(each.wanted.TargetPath) {
				return nil
			}

			err := m.publish(ctx, v, each.wanted)
			if err != nil {
				m.config.Prober.StagingFailed(v, err)
			}

			return err
		})
		if err != nil {
			m.config.Log.Error("cannot mount a volume that is mounted at each start; remove the cause, then restart the driver or mount it",
				"volume", each.volumeID, "target", each.wanted.TargetPath, "error", err)
		}

		m.config.Prober.ProbeAfterOperation(each.volumeID)
	}
}

func (m *Mounts) publish(ctx context.Context, v *staged.Volume, wanted staged.Publication) error {
	published, err := m.config.Lifecycle.IsPublished(v, wanted)
	if published || err != nil {
		return err
	}

	for _, path := range []string{v.StagingPath, wanted.TargetPath} {
		if err := m.config.Dirs.MakeParent(path, parentMode); err != nil {
			return err
		}
	}

	if err := m.checkEmpty(wanted.TargetPath); err != nil {
		return err
	}

	if err := m.config.Lifecycle.Stage(ctx, v.Unused()); err != nil {
		return err
	}

	if err := m.config.Lifecycle.Publish(ctx, v.VolumeID, v.StagingPath, wanted); err != nil {
		return err
	}

	m.config.Prober.StagedOrPublished(v.VolumeID)

	return nil
}

// checkEmpty returns FAILED_PRECONDITION for a directory with files, which the volume would hide. Another mount
// there is refused by the publication.
func (m *Mounts) checkEmpty(path string) error {
	target, err := m.config.Dirs.Target(path)
	if err != nil {
		return err
	}
	defer target.Close()

	if _, mounted, err := target.Mounted(); mounted || err != nil {
		return err
	}

	directory, err := target.OpenDir()
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}

	if err != nil {
		return err
	}
	defer directory.Close()

	if _, err := directory.Readdirnames(1); errors.Is(err, io.EOF) {
		return nil
	} else if err != nil {
		return err
	}

	return errdefs.Errorf(errdefs.ErrFailedPrecondition, "%s is not empty, and its files would be hidden; move them away", path)
}

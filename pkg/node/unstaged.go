package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Where STAGE_UNSTAGE_VOLUME is not advertised, the first publication of a
// volume stages it at a path of the service's own, and the last unpublication
// unstages it. All else is as with a CO that stages. The path is among those
// allowed for the CO, and not in the state directory: what is mounted there
// has to outlive the driver's container.

// ownStagingMode keeps others from the volumes that are staged there.
const ownStagingMode = 0o700

// OwnStagingDir returns where a driver stages volumes that the CO does not, in the kubelet's
// directory. It is not the directory of the driver's socket, in which the spec forbids to
// create anything else (CSI v1.13, Filesystem).
func OwnStagingDir(kubeletDir, driver string) string {
	return filepath.Join(kubeletDir, "plugins", "staging."+driver)
}

// ownStaging is the staging paths of the driver's own.
type ownStaging struct {
	dir string
	// always means that the CO stages no volume (STAGE_UNSTAGE_VOLUME is disabled).
	always bool
	dirs   *mount.AllowedDirs
}

func (o ownStaging) path(volumeID string) string { return filepath.Join(o.dir, volumeID) }

// ends reports whether the staging ends with the last publication: no NodeUnstageVolume
// follows.
func (o ownStaging) ends(v *staged.Volume) bool {
	return o.always || v.StagingPath == o.path(v.VolumeID)
}

// remove removes the mount point, which raw-block volumes do not have, unless it is the CO's.
func (o ownStaging) remove(v *staged.Volume) error {
	if v.StagingPath != o.path(v.VolumeID) {
		return nil
	}

	target, err := o.dirs.Target(v.StagingPath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	if err != nil {
		return err
	}
	defer target.Close()

	return target.Remove()
}

// stagingOf returns where the volume is staged that a publication is wanted of,
// and stages it first where that is not the CO's to do.
func (s *Service) stagingOf(ctx context.Context, request *csi.NodePublishVolumeRequest) (string, error) {
	if !s.ownStaging.always {
		return plain(request.GetStagingTargetPath()), nil
	}

	// It may be staged at the CO's path, from before the capability was disabled.
	if current, known := s.volumes.Staged.Get(request.GetVolumeId()); known {
		if staged, err := s.ways.For(current).IsStaged(current); staged || err != nil {
			return current.StagingPath, err
		}
	}

	own, err := parseStage(&csi.NodeStageVolumeRequest{
		VolumeId: request.GetVolumeId(), StagingTargetPath: s.ownStaging.path(request.GetVolumeId()),
		VolumeCapability: request.GetVolumeCapability(), VolumeContext: request.GetVolumeContext(),
		PublishContext: request.GetPublishContext(),
	})
	if err != nil {
		return "", err
	}

	if err := os.MkdirAll(s.ownStaging.dir, ownStagingMode); err != nil {
		return "", fmt.Errorf("make the directory in which volumes are staged: %w", err)
	}

	return own.StagingPath, s.stage(ctx, own)
}

// unstageLast undoes what stagingOf has done, once no publication is left.
func (s *Service) unstageLast(ctx context.Context, volumeID string) error {
	v, known := s.volumes.Staged.Get(volumeID)
	if !known || len(v.Publications) > 0 || !s.ownStaging.ends(v) {
		return nil
	}

	if err := s.ways.For(v).Unstage(ctx, v); err != nil {
		return err
	}

	if err := s.ownStaging.remove(v); err != nil {
		return err
	}

	return s.leave(v)
}

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/pkg/capability"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Where STAGE_UNSTAGE_VOLUME is not advertised, the first publication of a
// volume stages it at a path of the service's own, and the last unpublication
// unstages it. All else is as with a CO that stages. The path is among those
// allowed for the CO, and not in the state directory: what is mounted there
// has to outlive the driver's container.

// ownStagingMode keeps others from the volumes that are staged there.
const ownStagingMode = 0o700

func (s *Service) ownStagingPath(volumeID string) string {
	return filepath.Join(s.config.StagingDir, volumeID)
}

// stagesItself reports whether no NodeUnstageVolume will follow.
func (s *Service) stagesItself(use *staged.Volume) bool {
	return !s.config.Capabilities.Has(capability.StageUnstageVolume) || use.StagingPath == s.ownStagingPath(use.VolumeID)
}

// stagingOf returns where the volume is staged that a publication is wanted of,
// and stages it first where that is not the CO's to do.
func (s *Service) stagingOf(ctx context.Context, request *csi.NodePublishVolumeRequest) (string, error) {
	if s.config.Capabilities.Has(capability.StageUnstageVolume) {
		return plain(request.GetStagingTargetPath()), nil
	}

	// It may be staged at the CO's path, from before the capability was disabled.
	if current, known := s.stagedVolumes.Get(request.GetVolumeId()); known {
		if staged, err := s.access.For(current).IsStaged(current); staged || err != nil {
			return current.StagingPath, err
		}
	}

	own, err := parseStage(&csi.NodeStageVolumeRequest{
		VolumeId: request.GetVolumeId(), StagingTargetPath: s.ownStagingPath(request.GetVolumeId()),
		VolumeCapability: request.GetVolumeCapability(), VolumeContext: request.GetVolumeContext(),
		PublishContext: request.GetPublishContext(),
	})
	if err != nil {
		return "", err
	}

	if err := os.MkdirAll(s.config.StagingDir, ownStagingMode); err != nil {
		return "", fmt.Errorf("make the directory in which volumes are staged: %w", err)
	}

	return own.StagingPath, s.stage(ctx, own)
}

// unstageLast undoes what stagingOf has done, once no publication is left.
func (s *Service) unstageLast(ctx context.Context, volumeID string) error {
	use, known := s.stagedVolumes.Get(volumeID)
	if !known || len(use.Publications) > 0 || !s.stagesItself(use) {
		return nil
	}

	if err := s.access.For(use).Unstage(ctx, use); err != nil {
		return err
	}

	if use.StagingPath == s.ownStagingPath(volumeID) {
		if err := s.removeOwnStaging(use.StagingPath); err != nil {
			return err
		}
	}

	return s.leave(use)
}

// removeOwnStaging removes the mount point, which raw-block volumes have none of.
func (s *Service) removeOwnStaging(path string) error {
	place, err := s.dirs.Target(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	if err != nil {
		return err
	}
	defer place.Close()

	return place.Remove()
}

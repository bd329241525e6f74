package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
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

// ownStagingPath is where the driver stages a volume that the CO does not.
func (c *Config) ownStagingPath(volumeID string) string {
	return filepath.Join(c.StagingDir, volumeID)
}

// endsUnpublished reports whether the staging ends with the last publication: no NodeUnstageVolume
// follows.
func (c *Config) endsUnpublished(v *staged.Volume) bool {
	return !c.Capabilities.Has(capability.StageUnstageVolume) || v.StagingPath == c.ownStagingPath(v.VolumeID)
}

// removeOwnStaging removes the mount point, which raw-block volumes do not have, unless it is the CO's.
func (c *Config) removeOwnStaging(v *staged.Volume) error {
	if v.StagingPath != c.ownStagingPath(v.VolumeID) {
		return nil
	}

	return c.Dirs.WithTarget(v.StagingPath, (*mount.Target).Remove)
}

// stagingOf returns where the volume is staged that a publication is wanted of,
// and stages it first where that is not the CO's to do.
func (l *lifecycle) stagingOf(ctx context.Context, wanted publicationRequest) (string, error) {
	if wanted.unstaged == nil {
		return wanted.stagingPath, nil
	}

	// It may be staged at the CO's path, from before the capability was disabled.
	if current, isStaged, err := l.stagedNow(wanted.volumeID); err != nil {
		return "", err
	} else if isStaged {
		return current.StagingPath, nil
	}

	if err := os.MkdirAll(l.config.StagingDir, ownStagingMode); err != nil {
		return "", fmt.Errorf("make the directory in which volumes are staged: %w", err)
	}

	wanted.unstaged.StagingPath = l.config.ownStagingPath(wanted.volumeID)

	return wanted.unstaged.StagingPath, l.Stage(ctx, wanted.unstaged)
}

// unstageLast undoes what stagingOf has done, once no publication is left.
func (l *lifecycle) unstageLast(ctx context.Context, volumeID string) error {
	v, known := l.volumes.Staged.Get(volumeID)
	if !known || len(v.Publications) > 0 || !l.config.endsUnpublished(v) {
		return nil
	}

	if err := l.ways.For(v).Unstage(ctx, v); err != nil {
		return err
	}

	if err := l.config.removeOwnStaging(v); err != nil {
		return err
	}

	return l.leave(v)
}

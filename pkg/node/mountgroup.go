package node

import (
	"context"
	"fmt"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/capability"
	"github.com/touchstone-csi/touchstone/pkg/node/ownership"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// checkMountGroup refuses a group that is none, or that nobody was told could
// be asked for (CSI v1.13, VOLUME_MOUNT_GROUP).
func (s *Service) checkMountGroup(wanted volume.Capability) error {
	if wanted.MountGroup == "" {
		return nil
	}

	if !s.config.Capabilities.Has(capability.VolumeMountGroup) {
		return rpc.Invalid("volume_capability: volume_mount_group: VOLUME_MOUNT_GROUP is not advertised; " +
			"leave the group to the CO, or start the driver with --volume-mount-group")
	}

	if _, err := wanted.MountGroupID(); err != nil {
		return rpc.Invalid("volume_capability: %w", err)
	}

	return nil
}

// giveGroup lets the group of the capability own what the tree holds. The tree
// is still detached and a clone without what is mounted beneath: nothing but
// the volume is in it.
func (s *Service) giveGroup(ctx context.Context, wanted volume.Capability, options mount.Options, tree *mount.Detached) error {
	if wanted.MountGroup == "" || options.ReadOnly() {
		return nil
	}

	group, err := wanted.MountGroupID()
	if err != nil {
		return err
	}

	root, err := tree.OpenRoot()
	if err != nil {
		return err
	}
	defer root.Close()

	if err := ownership.ChangeGroup(ctx, root, group); err != nil {
		return fmt.Errorf("volume_mount_group: %w", err)
	}

	return nil
}

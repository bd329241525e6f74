package ephemeral

import (
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// sizeStep is the unit to which sizes are rounded up.
const sizeStep = 4096

// Parse returns the volume that is requested at the target, which is normalized. The caller has checked volume_id
// (rpc.CheckVolumeID) and that target_path is not missing.
func (v *Volumes) Parse(request *csi.NodePublishVolumeRequest, target string) (*staged.Inline, error) {
	capability, err := v.parseCapability(request.GetVolumeCapability())
	if err != nil {
		return nil, errdefs.Errorf(errdefs.ErrInvalidArgument, "volume_capability: %w", err)
	}

	parameters, size, err := volume.ParseEphemeral(request.GetVolumeContext())
	if err != nil {
		return nil, errdefs.Errorf(errdefs.ErrInvalidArgument, "volume_context: %w", err)
	}

	if _, named := request.GetVolumeContext()[volume.KeyPool]; !named {
		parameters.Pool = v.config.Pools.Volumes.Default()
	}

	if !v.config.Pools.Volumes.Has(parameters.Pool) {
		return nil, errdefs.Errorf(errdefs.ErrInvalidArgument, "volume_context: pool %q does not exist; there are %s",
			parameters.Pool, strings.Join(v.config.Pools.Volumes.Names(), ", "))
	}

	wanted := &staged.Inline{
		VolumeID: request.GetVolumeId(), SizeBytes: size, Parameters: parameters,
		Publication: staged.Publication{
			TargetPath: target, Capability: capability,
			ReadOnly: request.GetReadonly() || capability.ReaderOnly(),
		},
	}

	return wanted, v.complete(wanted)
}

func (v *Volumes) parseCapability(given *csi.VolumeCapability) (volume.Capability, error) {
	capability, err := volume.ParseCapability(given)
	if err != nil {
		return volume.Capability{}, err
	}

	if capability.MountOptions().PanicsOnError() {
		return volume.Capability{}, errdefs.Errorf(errdefs.ErrInvalidArgument,
			"mount_flags: the author of a pod must not make an error of its volume halt the node; "+
				"leave out errors=panic and fatal_errors=panic")
	}

	if err := v.config.Capabilities.CheckAccessMode(capability); err != nil {
		return volume.Capability{}, err
	}

	if capability.Block {
		return volume.Capability{}, errdefs.Errorf(errdefs.ErrInvalidArgument, "an inline ephemeral volume is mounted, it is no block device")
	}

	if !capability.SingleNode() {
		return volume.Capability{}, errdefs.Errorf(errdefs.ErrInvalidArgument,
			"access mode %s: an inline ephemeral volume is on one node only", capability.Mode)
	}

	return capability, v.config.Capabilities.CheckMountGroup(capability)
}

// complete decides the filesystem and the size, as CreateVolume does for other volumes.
func (v *Volumes) complete(r *staged.Inline) error {
	r.SizeBytes = roundUp(r.SizeBytes)

	if r.Parameters.MkfsOptions != "" && !v.config.MkfsOptions {
		return errdefs.Errorf(errdefs.ErrInvalidArgument,
			"volume_context: %s: an inline ephemeral volume takes none on this node (--ephemeral-mkfs-options=false); "+
				"leave it out, or use a claim and a StorageClass that has it", volume.KeyMkfsOptions)
	}

	if r.Parameters.Backing.HasFilesystem() {
		r.Parameters.FSType = r.StagedVolume().FSType()

		if err := filesystem.CheckOptions(r.Parameters.FSType, strings.Fields(r.Parameters.MkfsOptions)); err != nil {
			return errdefs.Errorf(errdefs.ErrInvalidArgument, "volume_context: %s: %w", volume.KeyMkfsOptions, err)
		}

		made, err := filesystem.ByName(r.Parameters.FSType, v.config.Run)
		if err != nil {
			return errdefs.Errorf(errdefs.ErrInvalidArgument, "volume_capability: %w", err)
		}

		r.SizeBytes = max(r.SizeBytes, roundUp(made.MinimumBytes()))
	}

	return nil
}

// checkLargest returns an ErrOutOfRange for the size of a new volume that is above the maximum. One that
// exists may be larger: the maximum may have been lowered.
func (v *Volumes) checkLargest(r *staged.Inline) error {
	if v.config.MaxVolumeBytes > 0 && r.SizeBytes > v.config.MaxVolumeBytes {
		return errdefs.Errorf(errdefs.ErrOutOfRange, "volume_context: %s: %d bytes are more than the largest volume has, %d (--max-volume-size)",
			volume.KeySize, r.SizeBytes, v.config.MaxVolumeBytes)
	}

	return nil
}

func roundUp(bytes int64) int64 { return (bytes + sizeStep - 1) / sizeStep * sizeStep }

package demo

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (d *demo) expand(v *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		with := v.short() + " size=" + formatBytes(v.grown)

		answer, err := d.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
			VolumeId:         v.publication.VolumeID,
			CapacityRange:    &csi.CapacityRange{RequiredBytes: v.grown},
			VolumeCapability: v.publication.Capability,
		})

		if err == nil {
			v.capacity = answer.GetCapacityBytes()
		}

		switch {
		case err != nil:
			return outcome{with: with}, err
		case v.capacity < v.grown:
			return outcome{with: with}, fmt.Errorf("%w: %s", errTooSmall, formatBytes(v.capacity))
		case !answer.GetNodeExpansionRequired():
			return outcome{with: with, got: "larger; no node expansion needed"}, nil
		default:
			return outcome{
				with: with, got: "larger; node expansion follows",
				then: []step{{"NodeExpandVolume", d.expandOnNode(v)}},
			}, nil
		}
	}
}

// expandOnNode grows device and filesystem while a workload uses them. A process
// without CAP_SYS_RESOURCE, as in many containers, may not grow a mounted ext4; then the
// next staging grows it, which is shown instead.
func (d *demo) expandOnNode(v *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		_, err := d.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
			VolumeId:          v.publication.VolumeID,
			VolumePath:        v.publication.TargetPath,
			StagingTargetPath: v.publication.StagingPath,
			VolumeCapability:  v.publication.Capability,
			CapacityRange:     &csi.CapacityRange{RequiredBytes: v.grown},
		})

		switch {
		case err == nil:
			return outcome{with: v.short(), got: "grown while in use"}, nil
		case status.Code(err) == codes.FailedPrecondition && v.kind == "ext4" && !canGrowMountedExt4():
			return outcome{
				with: v.short(), got: "refused here for a mounted ext4, so unmounted:",
				note: "(" + err.Error() + ")",
				then: []step{
					{unpublishVolume, d.unpublish(v)},
					{unstageVolume, d.unstage(v)},
					{stageVolume, d.stage(v)},
					{publishVolume, d.publish(v)},
					{"read, sha256", v.verify("")},
				},
			}, nil
		default:
			return outcome{with: v.short()}, err
		}
	}
}

// canGrowMountedExt4 reports whether the kernel allows this process, and so the driver, to
// grow a mounted ext4. If it does, a refusal is the driver's error.
func canGrowMountedExt4() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}

	var sets [2]unix.CapUserData // Version 3 has two words of each set.
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return true
	}

	return sets[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

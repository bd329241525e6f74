package demo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
)

func (d *demo) unpublish(v *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		done := outcome{with: v.short(), got: "the target path is gone"}
		if err := v.undoLast(ctx); err != nil {
			return done, err
		}

		if _, err := os.Lstat(v.publication.TargetPath); !errors.Is(err, fs.ErrNotExist) {
			return done, errTargetExists
		}

		return done, nil
	}
}

func (d *demo) unstage(v *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		done := outcome{with: v.short(), got: "unmounted, device free"}
		if err := v.undoLast(ctx); err != nil {
			return done, err
		}

		if err := d.checkNotInUse(v); err != nil {
			return done, err
		}

		// The orchestrator made the staging directory, so it removes it.
		if err := os.Remove(v.publication.StagingPath); err != nil {
			return done, fmt.Errorf("remove the staging directory: %w", err)
		}

		return done, nil
	}
}

// checkNotInUse verifies with the kernel that no mount or device of the volume is left.
func (d *demo) checkNotInUse(v *volume) error {
	if mount, err := mountAt(v.publication.StagingPath); err == nil {
		return fmt.Errorf("%w: %s is mounted at %s", errStillInUse, mount.Source, mount.Mountpoint)
	} else if !errors.Is(err, errNotMounted) {
		return err
	}

	loops, err := loopsBelow(d.paths.root)
	if err != nil {
		return err
	}

	for _, device := range loops {
		if strings.Contains(device.image, v.publication.VolumeID) {
			return fmt.Errorf("%w: %s", errStillInUse, device)
		}
	}

	return nil
}

func (d *demo) detach(v *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		return outcome{with: v.short() + " node=" + nodeID, got: "detached"}, v.undoLast(ctx)
	}
}

func (d *demo) delete(v *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		return outcome{with: v.short(), got: "gone"}, v.undoLast(ctx)
	}
}

func (d *demo) callDeleteVolume(ctx context.Context, claim *csiclient.Publication) error {
	_, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: claim.VolumeID})

	return err
}

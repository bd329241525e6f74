package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
)

// purpose says what a volume is for.
type purpose int

const (
	// temporary volumes are only read, and deleted in the end.
	temporary purpose = iota
	// kept volumes are written.
	kept
)

// cleanUpLimit is for the calls that take a volume away again, also after an
// interruption.
const cleanUpLimit = time.Minute

// withDevice makes a raw block volume and calls use while its device is
// published on this node. Every call is idempotent: after a crash the same
// command does what is left to do.
func (t *tool) withDevice(
	ctx context.Context, request *csi.CreateVolumeRequest, what purpose, use func(*os.File) error,
) (err error) {
	capability := csiclient.BlockCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)
	request.VolumeCapabilities = []*csi.VolumeCapability{capability}

	made, err := t.client.CreateVolume(ctx, request)
	if err != nil {
		return err
	}

	id := made.GetVolume().GetVolumeId()

	if what == temporary {
		defer func() {
			err = errors.Join(err, cleanUp(ctx, func(ctx context.Context) error {
				_, err := t.client.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})

				return err
			}))
		}()
	}

	node, err := t.client.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	if err != nil {
		return err
	}

	place := filepath.Join(t.dir, "backup-"+id)

	return t.published(ctx, place, &csiclient.Publication{
		VolumeID: id, VolumeContext: made.GetVolume().GetVolumeContext(), Capability: capability, NodeID: node.GetNodeId(),
		StagingPath: filepath.Join(place, "staging"), TargetPath: filepath.Join(place, "device"), ReadOnly: what == temporary,
	}, use)
}

// published brings the volume up to its target path, and down again.
func (t *tool) published(ctx context.Context, place string, claim *csiclient.Publication, use func(*os.File) error) (err error) {
	capabilities, err := t.client.Capabilities(ctx)
	if err != nil {
		return err
	}

	up, err := t.client.PublishSteps(capabilities, claim)
	if err != nil {
		return err
	}

	down, err := t.client.UnpublishSteps(capabilities, claim)
	if err != nil {
		return err
	}

	defer func() {
		err = errors.Join(err, cleanUp(ctx, func(ctx context.Context) error {
			return errors.Join(call(ctx, down, claim), os.RemoveAll(place))
		}))
	}()

	if err := call(ctx, up, claim); err != nil {
		return err
	}

	flag := os.O_RDWR
	if claim.ReadOnly {
		flag = os.O_RDONLY
	}

	device, err := os.OpenFile(claim.TargetPath, flag, 0)
	if err != nil {
		return err
	}
	defer device.Close()

	return use(device)
}

// zero makes the device read as zeros, and take no space if it can do without.
func zero(device *os.File, length int64) error {
	descriptor := int(device.Fd())

	err := unix.Fallocate(descriptor, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, length)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = unix.Fallocate(descriptor, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, 0, length)
	}

	if err != nil {
		return fmt.Errorf("clear %s: %w", device.Name(), err)
	}

	return nil
}

func call(ctx context.Context, steps []csiclient.Step, claim *csiclient.Publication) error {
	for _, step := range steps {
		if err := step.Call(ctx, claim); err != nil {
			return err
		}
	}

	return nil
}

// cleanUp has time of its own: the user may have interrupted the rest.
func cleanUp(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpLimit)
	defer cancel()

	return do(ctx)
}

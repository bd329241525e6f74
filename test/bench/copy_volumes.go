package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
)

// filled makes an ext4 volume of that size, mounts it and writes a file.
func (d *driver) filled(ctx context.Context, name string, size, data int64) (*csiclient.Publication, error) {
	claim, err := d.made(ctx, name, size, nil, mountable())
	if err != nil {
		return nil, err
	}

	if err := d.bringUp(ctx, claim); err != nil {
		return nil, err
	}

	path := filepath.Join(d.seen(claim.TargetPath), "data")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return nil, fmt.Errorf("fill volume %s: %w", claim.VolumeID, err)
	}

	return claim, overwrite(path, data, mib, everything)
}

// raw makes a raw block volume and publishes it.
func (d *driver) raw(ctx context.Context, name string, size int64) (*csiclient.Publication, error) {
	claim, err := d.made(ctx, name, size, nil, csiclient.BlockCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER))
	if err != nil {
		return nil, err
	}

	return claim, d.bringUp(ctx, claim)
}

func (d *driver) made(
	ctx context.Context, name string, size int64, parameters map[string]string, capability *csi.VolumeCapability,
) (*csiclient.Publication, error) {
	made, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: name, Parameters: parameters, VolumeCapabilities: []*csi.VolumeCapability{capability},
		CapacityRange: &csi.CapacityRange{RequiredBytes: size},
	})
	if err != nil {
		return nil, err
	}

	id := made.GetVolume().GetVolumeId()

	return &csiclient.Publication{
		VolumeID: id, VolumeContext: made.GetVolume().GetVolumeContext(), Capability: capability, NodeID: nodeID,
		StagingPath: filepath.Join(d.root, "kubelet", "staging", id),
		TargetPath:  filepath.Join(d.root, "kubelet", "pods", id, "mount"),
	}, nil
}

// seen is a path as the driver's own mount namespace has it.
func (d *driver) seen(path string) string {
	return fmt.Sprintf("/proc/%d/root%s", d.command.Process.Pid, path)
}

func (d *driver) bringUp(ctx context.Context, claim *csiclient.Publication) error {
	for _, step := range []func(context.Context, *csiclient.Publication) error{d.Attach, d.Stage, d.Publish} {
		if err := step(ctx, claim); err != nil {
			return err
		}
	}

	return nil
}

func (d *driver) takeDown(ctx context.Context, claim *csiclient.Publication) error {
	for _, step := range []func(context.Context, *csiclient.Publication) error{d.Unpublish, d.Unstage, d.Detach} {
		if err := step(ctx, claim); err != nil {
			return err
		}
	}

	return nil
}

// snapshot returns when the snapshot can be used.
func (d *driver) snapshot(ctx context.Context, volumeID, name string) (string, error) {
	for {
		made, err := d.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: volumeID})
		if err != nil {
			return "", err
		}

		if made.GetSnapshot().GetReadyToUse() {
			return made.GetSnapshot().GetSnapshotId(), nil
		}
	}
}

func (d *driver) deleteSnapshot(ctx context.Context, id string) error {
	_, err := d.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})

	return err
}

func (d *driver) copyOf(ctx context.Context, source *csiclient.Publication, name string, content *csi.VolumeContentSource) (string, error) {
	made, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{source.Capability}, VolumeContentSource: content,
		Parameters: map[string]string{"backing": source.VolumeContext["backing"]},
	})

	return made.GetVolume().GetVolumeId(), err
}

func fromSnapshot(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id},
	}}
}

func fromVolume(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id},
	}}
}

func everything(int) bool { return true }

// overwrite writes those of the blocks, numbered from 0, that are chosen, and
// waits for the disk.
func overwrite(path string, size, block int64, chosen func(number int) bool) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("fill %s: %w", path, err)
	}
	defer file.Close()

	data := make([]byte, block)
	for i := range data {
		data[i] = byte(i*7 + i>>12)
	}

	for number := range int(size / block) {
		if !chosen(number) {
			continue
		}

		if _, err := file.WriteAt(data, int64(number)*block); err != nil {
			return fmt.Errorf("fill %s: %w", path, err)
		}
	}

	if err := file.Sync(); err != nil {
		return fmt.Errorf("fill %s: %w", path, err)
	}

	return nil
}

// touch writes a little where the volume is published.
func (d *driver) touch(claim *csiclient.Publication) error {
	path := d.seen(claim.TargetPath)
	if claim.Capability.GetMount() != nil {
		path = filepath.Join(path, "data")
	}

	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("write to volume %s: %w", claim.VolumeID, err)
	}
	defer file.Close()

	_, err = file.WriteAt(make([]byte, mib), 0)

	return err
}

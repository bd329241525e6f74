package csiclient

import (
	"context"
	"iter"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// Volumes iterates over ListVolumes. With pageSize 0 the driver chooses. An error is yielded
// once, as the last element.
func (c *Client) Volumes(ctx context.Context, pageSize int32) iter.Seq2[*csi.ListVolumesResponse_Entry, error] {
	return pages(ctx, func(ctx context.Context, token string) (*csi.ListVolumesResponse, error) {
		return c.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: pageSize, StartingToken: token})
	})
}

// AbnormalVolumes iterates over ControllerListVolumeHealth. Most drivers omit healthy
// volumes, as the spec allows. An error is yielded once, as the last element.
func (c *Client) AbnormalVolumes(ctx context.Context) iter.Seq2[*csi.VolumeHealth, error] {
	return pages(ctx, func(ctx context.Context, token string) (*csi.ControllerListVolumeHealthResponse, error) {
		return c.ControllerListVolumeHealth(ctx, &csi.ControllerListVolumeHealthRequest{StartingToken: token})
	})
}

// FromSnapshot returns the content source of a volume that is restored from a snapshot.
func FromSnapshot(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id},
	}}
}

// FromVolume returns the content source of a volume that is a clone of another one.
func FromVolume(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id},
	}}
}

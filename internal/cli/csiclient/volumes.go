package csiclient

import (
	"context"
	"iter"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// Volumes walks ListVolumes page by page. pageSize 0 leaves it to the driver.
// An error is yielded once, as the last element.
func (o *Orchestrator) Volumes(ctx context.Context, pageSize int32) iter.Seq2[*csi.ListVolumesResponse_Entry, error] {
	return pages(ctx, func(ctx context.Context, token string) (page[*csi.ListVolumesResponse_Entry], error) {
		answer, err := o.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: pageSize, StartingToken: token})

		return page[*csi.ListVolumesResponse_Entry]{answer.GetEntries(), answer.GetNextToken()}, err
	})
}

// AbnormalVolumes walks ControllerListVolumeHealth page by page. Volumes of
// which nothing adverse is known are left out by most drivers, as the spec has
// it. An error is yielded once, as the last element.
func (o *Orchestrator) AbnormalVolumes(ctx context.Context) iter.Seq2[*csi.VolumeHealth, error] {
	return pages(ctx, func(ctx context.Context, token string) (page[*csi.VolumeHealth], error) {
		answer, err := o.ControllerListVolumeHealth(ctx, &csi.ControllerListVolumeHealthRequest{StartingToken: token})

		return page[*csi.VolumeHealth]{answer.GetEntries(), answer.GetNextToken()}, err
	})
}

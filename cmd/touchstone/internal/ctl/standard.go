package ctl

import (
	"context"
	"iter"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/health"
)

// The views of the report, as Touchstone names them.
const (
	viewController = "controller"
	viewNode       = "node"
)

// standardReport makes a report with the calls of CSI v1.13: of the given volumes, or of all
// that can be listed. It contains no times.
func (d driver) standardReport(ctx context.Context, ids []string) (*health.Report, error) {
	caps, err := d.Capabilities(ctx)
	if err != nil {
		return nil, err
	}

	info, err := d.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil {
		return nil, err
	}

	getting := caps.HasControllerRPC(csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH)
	listing := caps.HasControllerRPC(csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH)
	onNode := caps.HasNodeRPC(csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH)

	if !getting && !listing && !onNode {
		return nil, errNoHealth
	}

	collected := &standardHealth{indexes: map[string]int{}, report: &health.Report{
		Driver: info.GetName(), Version: info.GetVendorVersion(), At: time.Now(), Volumes: []health.VolumeReport{},
		Sources: map[string][]health.SourceStatus{}, Storage: []health.StorageReport{}, Changes: []health.Change{},
	}}
	all := len(ids) == 0

	if all && caps.HasControllerRPC(csi.ControllerServiceCapability_RPC_LIST_VOLUMES) {
		if ids, err = collected.list(d.Volumes(ctx, 0)); err != nil {
			return nil, err
		}
	}

	switch {
	case all && listing:
		err = collected.add(viewController, d.AbnormalVolumes(ctx))
	case getting || listing: // the spec requires GET of drivers with LIST
		err = collected.add(viewController, each(ids, func(id string) (*csi.VolumeHealth, error) {
			answer, err := d.ControllerGetVolumeHealth(ctx, &csi.ControllerGetVolumeHealthRequest{VolumeId: id})

			return answer.GetVolumeHealth(), err
		}))
	}

	if err == nil && onNode {
		err = collected.add(viewNode, each(ids, func(id string) (*csi.VolumeHealth, error) {
			answer, err := d.NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: id})

			return answer.GetVolumeHealth(), err
		}))
	}

	return collected.report, err
}

// standardHealth merges the answers of controller and node into a report.
type standardHealth struct {
	report *health.Report
	// indexes maps a volume's id to its index in the report.
	indexes map[string]int
}

// list adds volumes without conditions, and returns their ids.
func (h *standardHealth) list(volumes iter.Seq2[*csi.ListVolumesResponse_Entry, error]) (ids []string, err error) {
	for entry, err := range volumes {
		if err != nil {
			return nil, err
		}

		ids = append(ids, entry.GetVolume().GetVolumeId())
		h.volume(entry.GetVolume().GetVolumeId()).CapacityBytes = entry.GetVolume().GetCapacityBytes()
	}

	return ids, nil
}

// each gets the health of one volume after the other. NOT_FOUND is no error: the other view may
// know the volume.
func each(ids []string, get func(id string) (*csi.VolumeHealth, error)) iter.Seq2[*csi.VolumeHealth, error] {
	return func(yield func(*csi.VolumeHealth, error) bool) {
		for _, id := range ids {
			answer, err := get(id)
			if status.Code(err) != codes.NotFound && !yield(&csi.VolumeHealth{VolumeId: id, HealthStatuses: answer.GetHealthStatuses()}, err) {
				return
			}
		}
	}
}

// add adds what one view knows of volumes.
func (h *standardHealth) add(view string, answers iter.Seq2[*csi.VolumeHealth, error]) error {
	for answer, err := range answers {
		if err != nil {
			return err
		}

		volume := h.volume(answer.GetVolumeId())

		for _, entry := range answer.GetHealthStatuses() {
			condition := health.ConditionReport{View: view, Entry: health.Entry{
				Reason: health.Reason(entry.GetReason()), Message: entry.GetMessage(),
			}}
			_ = condition.Status.UnmarshalText([]byte(entry.GetStatus().String())) // it accepts any text

			volume.Conditions = append(volume.Conditions, condition)
		}
	}

	return nil
}

// volume returns a volume's entry of the report; the pointer is valid until the next call.
func (h *standardHealth) volume(id string) *health.VolumeReport {
	at, known := h.indexes[id]
	if !known {
		at = len(h.report.Volumes)
		h.indexes[id] = at
		h.report.Volumes = append(h.report.Volumes, health.VolumeReport{ID: id, Conditions: []health.ConditionReport{}})
	}

	return &h.report.Volumes[at]
}

package ctl

import (
	"context"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/health"
)

// The views of the report, as Touchstone names them.
const (
	viewController = "controller"
	viewNode       = "node"
)

// standardReport makes a report with the calls of CSI v1.13: of the given volumes, or of all
// that can be listed. It contains no times.
func (s *session) standardReport(ctx context.Context, ids []string) (*health.Report, error) {
	caps, err := s.Capabilities(ctx)
	if err != nil {
		return nil, err
	}

	info, err := s.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil {
		return nil, err
	}

	collected := &standardHealth{session: s, caps: caps, indexes: map[string]int{}, report: &health.Report{
		Driver: info.GetName(), Version: info.GetVendorVersion(), At: time.Now(), Volumes: []health.VolumeReport{},
		Sources: map[string][]health.SourceStatus{}, Storage: []health.StorageReport{}, Changes: []health.Change{},
	}}

	return collected.report, collected.collect(ctx, ids)
}

// standardHealth merges the answers of controller and node into a report.
type standardHealth struct {
	*session

	caps   csiclient.Capabilities
	report *health.Report
	// indexes maps a volume's id to its index in the report.
	indexes map[string]int
}

func (g *standardHealth) collect(ctx context.Context, ids []string) error {
	getting := g.caps.HasControllerRPC(csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH)
	listing := g.caps.HasControllerRPC(csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH)
	onNode := g.caps.HasNodeRPC(csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH)

	if !getting && !listing && !onNode {
		return errNoHealth
	}

	found, err := g.volumeIDs(ctx, ids)
	if err != nil {
		return err
	}

	switch {
	case len(ids) == 0 && listing:
		err = g.addListed(ctx)
	case getting || listing: // the spec requires GET of drivers with LIST
		err = g.addEach(ctx, found, viewController, g.controllerHealth)
	}

	if err != nil || !onNode {
		return err
	}

	return g.addEach(ctx, found, viewNode, g.nodeHealth)
}

// volumeIDs returns the given ids or, if there are none, the ids of all volumes that the driver
// lists, which it adds to the report without conditions.
func (g *standardHealth) volumeIDs(ctx context.Context, ids []string) ([]string, error) {
	if len(ids) > 0 || !g.caps.HasControllerRPC(csi.ControllerServiceCapability_RPC_LIST_VOLUMES) {
		return ids, nil
	}

	for entry, err := range g.Volumes(ctx, 0) {
		if err != nil {
			return nil, err
		}

		ids = append(ids, entry.GetVolume().GetVolumeId())
		g.volume(entry.GetVolume().GetVolumeId()).CapacityBytes = entry.GetVolume().GetCapacityBytes()
	}

	return ids, nil
}

func (g *standardHealth) addListed(ctx context.Context) error {
	for entry, err := range g.AbnormalVolumes(ctx) {
		if err != nil {
			return err
		}

		g.add(entry.GetVolumeId(), viewController, entry)
	}

	return nil
}

func (g *standardHealth) controllerHealth(ctx context.Context, id string) (*csi.VolumeHealth, error) {
	answer, err := g.ControllerGetVolumeHealth(ctx, &csi.ControllerGetVolumeHealthRequest{VolumeId: id})

	return answer.GetVolumeHealth(), err
}

func (g *standardHealth) nodeHealth(ctx context.Context, id string) (*csi.VolumeHealth, error) {
	answer, err := g.NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: id})

	return answer.GetVolumeHealth(), err
}

// addEach gets the health of one volume after the other. NOT_FOUND is no error: the other
// view may know the volume.
func (g *standardHealth) addEach(
	ctx context.Context, ids []string, view string, ask func(context.Context, string) (*csi.VolumeHealth, error),
) error {
	for _, id := range ids {
		answer, err := ask(ctx, id)

		switch status.Code(err) {
		case codes.OK:
			g.add(id, view, answer)
		case codes.NotFound:
		default:
			return err
		}
	}

	return nil
}

func (g *standardHealth) add(id, view string, answer *csi.VolumeHealth) {
	volume := g.volume(id)

	for _, entry := range answer.GetHealthStatuses() {
		condition := health.ConditionReport{View: view, Entry: health.Entry{
			Reason: health.Reason(entry.GetReason()), Message: entry.GetMessage(),
		}}
		_ = condition.Status.UnmarshalText([]byte(entry.GetStatus().String())) // it accepts any text

		volume.Conditions = append(volume.Conditions, condition)
	}
}

// volume returns a volume's entry of the report; the pointer is valid until the next call.
func (g *standardHealth) volume(id string) *health.VolumeReport {
	at, known := g.indexes[id]
	if !known {
		at = len(g.report.Volumes)
		g.indexes[id] = at
		g.report.Volumes = append(g.report.Volumes, health.VolumeReport{ID: id, Conditions: []health.ConditionReport{}})
	}

	return &g.report.Volumes[at]
}

package ctl

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/health"
)

var (
	errUnhealthy = errors.New("not healthy")
	errNoVolume  = errors.New("the driver knows no such volume here")
	errNoHealth  = errors.New("the driver reports no health of volumes: it has neither GET_VOLUME_HEALTH nor LIST_VOLUME_HEALTH")
	errNoStorage = errors.New("the driver reports no health of its storage: its node does not advertise GET_STORAGE_HEALTH")
)

const healthyWord = "HEALTHY"

func healthVerb() verb {
	var abnormal bool

	return verb{
		name: "health", arguments: []argument{anyVolumes}, healthCode: true, short: "Show volumes' conditions, and since when",
		long: `Show the conditions of all or the given volumes, as the driver's node and controller
observe them; for a driver other than Touchstone the answers of
ControllerGetVolumeHealth, ControllerListVolumeHealth and NodeGetVolumeHealth.
Exit code 0: all of them are healthy, 1: one is not, 2: that is unknown.`,
		example: `  touchstone ctl volume health
  touchstone ctl volume health --abnormal -o json`,
		flags: func(flags *pflag.FlagSet) { flags.BoolVar(&abnormal, "abnormal", false, "omit healthy volumes") },
		run:   func(ctx context.Context, s *session) error { return s.health(ctx, abnormal) },
	}
}

func (s *session) health(ctx context.Context, abnormal bool) error {
	report, err := s.report(ctx, s.args)
	if err != nil {
		return err
	}

	missing := filterVolumes(report, s.args)
	all := report.Volumes
	abnormalVolumes := slices.DeleteFunc(slices.Clone(all), func(v health.VolumeReport) bool { return len(v.Conditions) == 0 })

	if abnormal {
		report.Volumes = abnormalVolumes
	}

	ids := mapped(report.Volumes, func(v health.VolumeReport) string { return v.ID })
	err = s.show(nil, report, conditionColumns.table(s.output, s.conditions(report)...), ids...)

	switch {
	case err != nil:
		return err
	case len(abnormalVolumes) > 0:
		return unhealthy(errors.Join(fmt.Errorf("%w: %d of %d volumes", errUnhealthy, len(abnormalVolumes), len(all)), missing))
	default:
		return missing
	}
}

// filterVolumes keeps only the volumes with the given ids, or all if there are none. Its error
// names the missing ones.
func filterVolumes(report *health.Report, ids []string) error {
	if len(ids) == 0 {
		return nil
	}

	report.Volumes = slices.DeleteFunc(report.Volumes, func(v health.VolumeReport) bool { return !slices.Contains(ids, v.ID) })

	return errors.Join(mapped(ids, func(id string) error {
		if slices.ContainsFunc(report.Volumes, func(v health.VolumeReport) bool { return v.ID == id }) {
			return nil
		}

		return fmt.Errorf("volume %s: %w", id, errNoVolume)
	})...)
}

// condition is a condition of a volume, or that it has none.
type condition struct {
	health.ConditionReport

	volume, status string
}

var conditionColumns = columns[condition]{
	{header: "VOLUME", text: func(c condition) string { return c.volume }},
	{header: "VIEW", text: func(c condition) string { return c.View }},
	{header: "STATUS", text: func(c condition) string { return c.status }},
	{header: "REASON", text: func(c condition) string { return string(c.Reason) }},
	{header: "SINCE", text: func(c condition) string { return since(c.Since) }},
	{header: "MESSAGE", text: func(c condition) string { return c.Message }},
}

func (p *printer) conditions(report *health.Report) (all []condition) {
	for _, volume := range report.Volumes {
		if len(volume.Conditions) == 0 {
			all = append(all, condition{volume: p.names.of(volume.ID), status: healthyWord})
		}

		for _, each := range volume.Conditions {
			each.Message = forPeople(volume, each.Message)
			all = append(all, condition{each, p.names.of(volume.ID), each.Status.String()})
		}
	}

	return all
}

// since returns how long ago a time was. Other drivers than Touchstone have no times.
func since(at time.Time) string {
	if at.IsZero() {
		return dash
	}

	return duration.HumanDuration(time.Since(at))
}

// report uses Touchstone's own service, or the calls of the spec if the driver lacks it.
func (s *session) report(ctx context.Context, ids []string) (*health.Report, error) {
	report, err := s.ownReport(ctx)
	if status.Code(err) == codes.Unimplemented {
		return standardReport(ctx, s.Client, ids)
	}

	return report, err
}

// ownReport returns Touchstone's own report, whose names the session knows from then on.
func (s *session) ownReport(ctx context.Context) (*health.Report, error) {
	report, err := health.NewClient(s.Conn()).Report(ctx)
	if err != nil {
		return nil, err
	}

	for _, each := range report.Volumes {
		s.names.add(each.ID, each.Name)
	}

	return report, nil
}

// known returns Touchstone's own report of a volume, which has the paths at which the node uses it;
// none of a driver of another kind, or if the driver does not know the volume.
func (s *session) known(ctx context.Context, id string) (health.VolumeReport, error) {
	report, err := s.ownReport(ctx)
	if status.Code(err) == codes.Unimplemented {
		return health.VolumeReport{}, nil
	}

	return only(report, err, id), err
}

// only returns the part of one volume, or none, also if the report is not available.
func only(report *health.Report, err error, id string) health.VolumeReport {
	if err != nil || filterVolumes(report, []string{id}) != nil {
		return health.VolumeReport{}
	}

	return report.Volumes[0]
}

// healthSheet returns the rows that follow those of the volume.
func healthSheet(known health.VolumeReport) (rows [][]string) {
	for _, each := range known.Conditions {
		rows = append(rows, []string{"Condition:", fmt.Sprintf("%s %s for %s (%s): %s",
			each.Status, each.Reason, since(each.Since), each.View, forPeople(known, each.Message))})
	}

	if len(rows) == 0 {
		rows = append(rows, []string{"Condition:", healthyWord})
	}

	if check := known.Check; check != nil && !check.At.IsZero() {
		rows = append(rows,
			[]string{"Last check:", fmt.Sprintf("%s, %s (%s)", ago(check.At), check.Verdict, check.How)},
			[]string{"Last clean check:", ago(check.CleanAt)})
	}

	return rows
}

func ago(at time.Time) string {
	if at.IsZero() {
		return "never"
	}

	return fmt.Sprintf("%s (%s ago)", at.Format(time.RFC3339), since(at))
}

var storageHealthVerb = verb{
	name: "health", healthCode: true, nameless: true, short: "NodeGetStorageHealth",
	long: `NodeGetStorageHealth: show the conditions of the storage of the node's volumes.
Exit code 0: there is none, 1: there is one, 2: that is unknown.`,
	run: func(ctx context.Context, s *session) error {
		answer, err := s.NodeGetStorageHealth(ctx, &csi.NodeGetStorageHealthRequest{})
		if status.Code(err) == codes.Unimplemented {
			return fmt.Errorf("%w (%w)", errNoStorage, err)
		}

		rows, count := [][]string{{"STATUS", "REASON", "MESSAGE"}}, len(answer.GetBackendHealth())
		for _, each := range answer.GetBackendHealth() {
			rows = append(rows, []string{each.GetStatus().String(), each.GetReason(), orDash(each.GetMessage())})
		}

		if count == 0 {
			rows = append(rows, []string{healthyWord, dash, dash})
		}

		if err := s.show(err, answer, rows); err != nil || count == 0 {
			return err
		}

		return unhealthy(fmt.Errorf("%w: the storage (%d conditions)", errUnhealthy, count))
	},
}

// standardReport makes a report with the calls of CSI v1.13: of the given volumes, or of all
// that can be listed. It contains no times.
func standardReport(ctx context.Context, co *csiclient.Client, ids []string) (*health.Report, error) {
	caps, err := co.Capabilities(ctx)
	if err != nil {
		return nil, err
	}

	info, err := co.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil {
		return nil, err
	}

	getting := caps.HasControllerRPC(csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH)
	listing := caps.HasControllerRPC(csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH)
	onNode := caps.HasNodeRPC(csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH)

	if !getting && !listing && !onNode {
		return nil, errNoHealth
	}

	collected := &standardHealth{
		Driver: info.GetName(), Version: info.GetVendorVersion(), At: time.Now(), Volumes: []health.VolumeReport{},
		Sources: map[string][]health.SourceStatus{}, Storage: []health.StorageReport{}, Changes: []health.Change{},
	}
	all := len(ids) == 0

	if all && caps.HasControllerRPC(csi.ControllerServiceCapability_RPC_LIST_VOLUMES) {
		entries, err := collect(co.Volumes(ctx, 0))
		if err != nil {
			return nil, err
		}

		ids = mapped(entries, func(entry *csi.ListVolumesResponse_Entry) string {
			id := entry.GetVolume().GetVolumeId()
			collected.volume(id).CapacityBytes = entry.GetVolume().GetCapacityBytes()

			return id
		})
	}

	switch {
	case all && listing:
		err = collected.add(controllerPart, co.AbnormalVolumes(ctx))
	case getting || listing: // the spec requires GET of drivers with LIST
		err = collected.add(controllerPart, each(ids, func(id string) (healthAnswer, error) {
			return co.ControllerGetVolumeHealth(ctx, &csi.ControllerGetVolumeHealthRequest{VolumeId: id})
		}))
	}

	if err != nil || !onNode {
		return (*health.Report)(collected), err
	}

	err = collected.add(nodePart, each(ids, func(id string) (healthAnswer, error) {
		return co.NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: id})
	}))

	return (*health.Report)(collected), err
}

// standardHealth is a report of the answers of controller and node.
type standardHealth health.Report

type healthAnswer interface{ GetVolumeHealth() *csi.VolumeHealth }

// each gets the health of one volume after the other. NOT_FOUND is no error: the other view may
// know the volume.
func each(ids []string, get func(id string) (healthAnswer, error)) iter.Seq2[*csi.VolumeHealth, error] {
	return func(yield func(*csi.VolumeHealth, error) bool) {
		for _, id := range ids {
			answer, err := get(id)
			statuses := answer.GetVolumeHealth().GetHealthStatuses()
			if status.Code(err) != codes.NotFound && !yield(&csi.VolumeHealth{VolumeId: id, HealthStatuses: statuses}, err) {
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
	at := slices.IndexFunc(h.Volumes, func(v health.VolumeReport) bool { return v.ID == id })
	if at < 0 {
		at = len(h.Volumes)
		h.Volumes = append(h.Volumes, health.VolumeReport{ID: id, Conditions: []health.ConditionReport{}})
	}

	return &h.Volumes[at]
}

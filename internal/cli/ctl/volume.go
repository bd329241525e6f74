package ctl

import (
	"context"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/cobra"

	"github.com/touchstone-csi/touchstone/pkg/controller/names"
	"github.com/touchstone-csi/touchstone/pkg/health"
)

func newVolumeCommand(given *settings) *cobra.Command {
	return aliased(group("volume", "Make, use, grow and delete volumes",
		newCreateCommand(given),
		newDeleteCommand(given),
		newListCommand(given),
		newGetCommand(given),
		newExpandCommand(given),
		newModifyCommand(given),
		newPublishCommand(given),
		newUnpublishCommand(given),
		newStatsCommand(given),
		newHealthCommand(given),
		newMountCommand(given),
		newUmountCommand(given),
	), "volumes", "vol")
}

func newDeleteCommand(given *settings) *cobra.Command {
	return deletion(given, "DeleteVolume", names.Volume, func(ctx context.Context, s *session, id string) error {
		_, err := s.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})

		return err
	})
}

func newListCommand(given *settings) *cobra.Command {
	var pageSize int32

	cmd := given.verb("list", "ListVolumes, all pages", exactly(0), func(ctx context.Context, s *session) error {
		return s.watching(ctx, func(ctx context.Context) error { return s.listVolumes(ctx, pageSize) })
	})
	cmd.Flags().Int32Var(&pageSize, "max-entries", 0, "ask for this many at a time (default: the driver's choice)")
	given.defineWatch(cmd)

	return aliased(cmd, "ls")
}

// listVolumes shows what ListVolumes returns, and in tables also what the driver's health report
// has of the volumes: names, usage, paths and conditions.
func (s *session) listVolumes(ctx context.Context, pageSize int32) error {
	known := map[string]*health.VolumeReport{}

	if report, err := health.NewClient(s.Conn()).Report(ctx); err == nil {
		for i := range report.Volumes {
			known[report.Volumes[i].ID] = &report.Volumes[i]
		}
	}

	whole := &csi.ListVolumesResponse{}
	table := listing{header: []string{"NAME", "ID", "SIZE", "USED", "FS", "POOL", "MOUNTED AT", "HEALTH", "NODES", "TOPOLOGY"}, wide: 2}

	for entry, err := range s.Volumes(ctx, pageSize) {
		if err != nil {
			return err
		}

		id := entry.GetVolume().GetVolumeId()
		whole.Entries = append(whole.Entries, entry)
		table.add(volumeName(id, known[id]), append(volumeRow(entry.GetVolume(), known[id]),
			orDash(strings.Join(entry.GetStatus().GetPublishedNodeIds(), ",")),
			formatTopologies(entry.GetVolume().GetAccessibleTopology())))
	}

	return s.list(whole, &table)
}

// volumeName returns the name of a volume, or its id where the name is not known.
func volumeName(id string, known *health.VolumeReport) string {
	if known == nil || known.Name == "" {
		return id
	}

	return known.Name
}

func volumeRow(v *csi.Volume, known *health.VolumeReport) []string {
	if known == nil {
		return []string{dash, v.GetVolumeId(), formatBytes(v.GetCapacityBytes()), dash, dash, dash, dash, dash}
	}

	used := dash
	if known.Usage != nil {
		used = formatBytes(known.Usage.Bytes.Used)
	}

	condition := healthyWord
	if len(known.Conditions) > 0 {
		condition = fmt.Sprintf("%s %s", known.Conditions[0].Status, known.Conditions[0].Reason)
	}

	kind := known.FSType
	if kind == "" {
		kind = map[string]string{"image": "raw block", "directory": "directory"}[known.Backing]
	}

	return []string{
		orDash(known.Name), v.GetVolumeId(), formatBytes(v.GetCapacityBytes()), used, orDash(kind), orDash(known.Pool),
		orDash(strings.Join(known.Published, ",")), condition,
	}
}

func newGetCommand(given *settings) *cobra.Command {
	return given.onVolume("get", "ControllerGetVolume, with the volume's health", func(ctx context.Context, s *session) error {
		answer, err := s.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: s.args[0]})
		if err != nil {
			return err
		}

		return s.showVolume(answer, s.healthOf(ctx, s.args[0]))
	})
}

// showVolume shows the answer, with the volume's health if it is available.
func (s *session) showVolume(answer *csi.ControllerGetVolumeResponse, known *health.VolumeReport) error {
	rows := append(sheet(answer.GetVolume(), answer.GetStatus()), healthSheet(known)...)
	if known == nil {
		return s.show(answer, rows)
	}

	parts := answers{"volume": answer.GetVolume(), "health": known}
	if answer.GetStatus() != nil {
		parts["status"] = answer.GetStatus()
	}
	return s.show(parts, rows)
}

func newExpandCommand(given *settings) *cobra.Command {
	var (
		required, limit size
		path, staging   string
		use             capabilityFlags
	)

	cmd := &cobra.Command{
		Use:   "expand VOLUME --size SIZE",
		Short: "ControllerExpandVolume, and NodeExpandVolume with --path",
		Long: `ControllerExpandVolume. When the driver answers that the node has to do its part
and --path names where the volume is published, NodeExpandVolume follows;
without --path the part of the node is left to the next staging.`,
		Args: exactly(1),
		RunE: given.inSession(naming(names.Volume, 0, 1, func(ctx context.Context, s *session) error {
			capability, err := use.capability()
			if err != nil {
				return err
			}

			return s.expand(ctx, &csi.ControllerExpandVolumeRequest{
				VolumeId:         s.args[0],
				CapacityRange:    &csi.CapacityRange{RequiredBytes: int64(required), LimitBytes: int64(limit)},
				VolumeCapability: capability,
			}, path, staging)
		})),
		ValidArgsFunction: completeNames(given, names.Volume, 0, 0),
	}
	cmd.Flags().Var(&required, "size", "the new size, such as 2Gi")
	cmd.Flags().Var(&limit, "limit", "at most this large")
	cmd.Flags().StringVar(&path, "path", "", "where the volume is published")
	cmd.Flags().StringVar(&staging, "staging", "", "where it is staged")
	use.register(cmd)
	markRequired(cmd, "size")

	return cmd
}

func (s *session) expand(ctx context.Context, request *csi.ControllerExpandVolumeRequest, path, staging string) error {
	answer, err := s.ControllerExpandVolume(ctx, request)
	if err != nil {
		return err
	}

	parts := answers{keyController: answer}
	onNode := "not needed"

	switch {
	case !answer.GetNodeExpansionRequired():
	case path == "":
		onNode = "needed: expand again with --path, or stage the volume again"
	default:
		grown, err := s.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
			VolumeId:          request.GetVolumeId(),
			VolumePath:        path,
			StagingTargetPath: staging,
			VolumeCapability:  request.GetVolumeCapability(),
			CapacityRange:     &csi.CapacityRange{RequiredBytes: answer.GetCapacityBytes()},
		})
		if err != nil {
			return err
		}

		parts[keyNode] = grown
		onNode = "done"
	}

	return s.show(parts, [][]string{
		{"Volume ID:", request.GetVolumeId()},
		{"Capacity:", formatBytes(answer.GetCapacityBytes())},
		{"Node's part:", onNode},
	})
}

func newModifyCommand(given *settings) *cobra.Command {
	var mutable keyValues

	cmd := &cobra.Command{
		Use:   "modify VOLUME --mutable KEY=VALUE…",
		Short: "ControllerModifyVolume",
		Long: `ControllerModifyVolume: the parameters of a VolumeAttributesClass. What is not
named stays as it is.`,
		Example: `  touchstone ctl volume modify data --mutable readIOPS=500 --mutable ioScheduler=none`,
		Args:    exactly(1),
		RunE: given.inSession(naming(names.Volume, 0, 1, func(ctx context.Context, s *session) error {
			answer, err := s.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{
				VolumeId: s.args[0], MutableParameters: mutable,
			})
			if err != nil {
				return err
			}

			return s.show(answer, [][]string{{"modified " + s.args[0]}})
		})),
		ValidArgsFunction: completeNames(given, names.Volume, 0, 0),
	}
	cmd.Flags().Var(&mutable, "mutable", "a mutable parameter (repeatable)")
	markRequired(cmd, "mutable")

	return cmd
}

// sheet describes one volume, a line for each property.
func sheet(v *csi.Volume, status *csi.ControllerGetVolumeResponse_VolumeStatus) [][]string {
	rows := [][]string{
		{"Volume ID:", v.GetVolumeId()},
		{"Capacity:", formatBytes(v.GetCapacityBytes())},
	}

	if status != nil {
		rows = append(rows, []string{"Published to:", orDash(strings.Join(status.GetPublishedNodeIds(), ","))})
	}

	return append(rows,
		[]string{"Topology:", formatTopologies(v.GetAccessibleTopology())},
		[]string{"Context:", formatPairs(v.GetVolumeContext())},
	)
}

package ctl

import (
	"context"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/cobra"

	"github.com/touchstone-csi/touchstone/pkg/health"
)

func newVolumeCommand(given *settings) *cobra.Command {
	return group("volume", "Make, use, grow and delete volumes",
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
	)
}

func newDeleteCommand(given *settings) *cobra.Command {
	return deletion(given, "DeleteVolume", "volume", func(ctx context.Context, s *session, id string) error {
		_, err := s.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})

		return err
	})
}

func newListCommand(given *settings) *cobra.Command {
	var pageSize int32

	cmd := given.verb("list", "ListVolumes, all pages", exactly(0), func(ctx context.Context, s *session) error {
		whole := &csi.ListVolumesResponse{}
		rows := [][]string{{"VOLUME ID", "CAPACITY", "PUBLISHED TO", "TOPOLOGY"}}

		for entry, err := range s.Volumes(ctx, pageSize) {
			if err != nil {
				return err
			}

			whole.Entries = append(whole.Entries, entry)
			rows = append(rows, []string{
				entry.GetVolume().GetVolumeId(),
				formatBytes(entry.GetVolume().GetCapacityBytes()),
				orDash(strings.Join(entry.GetStatus().GetPublishedNodeIds(), ",")),
				formatTopologies(entry.GetVolume().GetAccessibleTopology()),
			})
		}

		return s.show(whole, rows)
	})
	cmd.Flags().Int32Var(&pageSize, "max-entries", 0, "ask for this many at a time (default: the driver's choice)")

	return cmd
}

func newGetCommand(given *settings) *cobra.Command {
	return given.verb("get ID", "ControllerGetVolume, with the volume's health", exactly(1), func(ctx context.Context, s *session) error {
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
		Use:   "expand ID --size SIZE",
		Short: "ControllerExpandVolume, and NodeExpandVolume with --path",
		Long: `ControllerExpandVolume. When the driver answers that the node has to do its part
and --path names where the volume is published, NodeExpandVolume follows;
without --path the part of the node is left to the next staging.`,
		Args: exactly(1),
		RunE: given.inSession(func(ctx context.Context, s *session) error {
			capability, err := use.capability()
			if err != nil {
				return err
			}

			return s.expand(ctx, &csi.ControllerExpandVolumeRequest{
				VolumeId:         s.args[0],
				CapacityRange:    &csi.CapacityRange{RequiredBytes: int64(required), LimitBytes: int64(limit)},
				VolumeCapability: capability,
			}, path, staging)
		}),
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
		Use:   "modify ID --mutable KEY=VALUE…",
		Short: "ControllerModifyVolume",
		Long: `ControllerModifyVolume: the parameters of a VolumeAttributesClass. What is not
named stays as it is.`,
		Example: `  touchstone ctl volume modify ID --mutable readIOPS=500 --mutable ioScheduler=none`,
		Args:    exactly(1),
		RunE: given.inSession(func(ctx context.Context, s *session) error {
			answer, err := s.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{
				VolumeId: s.args[0], MutableParameters: mutable,
			})
			if err != nil {
				return err
			}

			return s.show(answer, [][]string{{"modified " + s.args[0]}})
		}),
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

package ctl

import (
	"context"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
)

func newStatsCommand(given *settings) *cobra.Command {
	var path, staging string

	cmd := given.onVolume("stats", "NodeGetVolumeStats", func(ctx context.Context, s *session) error {
		if err := s.findPath(ctx, s.args[0], &path); err != nil {
			return err
		}

		answer, err := s.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{
			VolumeId:          s.args[0],
			VolumePath:        path,
			StagingTargetPath: staging,
		})
		if err != nil {
			return err
		}

		rows := [][]string{{"UNIT", "TOTAL", "USED", "AVAILABLE"}}
		for _, usage := range answer.GetUsage() {
			write := humanize.Comma
			if usage.GetUnit() == csi.VolumeUsage_BYTES {
				write = formatBytes
			}

			rows = append(rows, []string{
				usage.GetUnit().String(), write(usage.GetTotal()), write(usage.GetUsed()), write(usage.GetAvailable()),
			})
		}

		return s.show(answer, rows)
	})
	cmd.Flags().StringVar(&path, "path", "", "where the volume is published or staged (default: where it is mounted)")
	cmd.Flags().StringVar(&staging, "staging", "", "where it is staged, if --path is not that")

	return cmd
}

func newNodeInfoCommand(given *settings) *cobra.Command {
	return given.verb("info", "NodeGetInfo", exactly(0), func(ctx context.Context, s *session) error {
		answer, err := s.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
		if err != nil {
			return err
		}

		most := "the orchestrator's choice"
		if answer.GetMaxVolumesPerNode() > 0 {
			most = strconv.FormatInt(answer.GetMaxVolumesPerNode(), 10)
		}

		return s.show(answer, [][]string{
			{"Node ID:", answer.GetNodeId()},
			{"Most volumes:", most},
			{"Topology:", formatPairs(answer.GetAccessibleTopology().GetSegments())},
		})
	})
}

func newCapacityCommand(given *settings) *cobra.Command {
	var (
		parameters keyValues
		topology   []string
		use        capabilityFlags
	)

	cmd := given.verb("capacity", "GetCapacity", exactly(0), func(ctx context.Context, s *session) error {
		capability, err := use.capability()
		if err != nil {
			return err
		}

		request := &csi.GetCapacityRequest{
			Parameters:         parameters,
			VolumeCapabilities: []*csi.VolumeCapability{capability},
		}

		places, err := topologies(topology)
		if err != nil {
			return err
		}

		if len(places) > 0 {
			request.AccessibleTopology = places[0]
		}

		answer, err := s.GetCapacity(ctx, request)
		if err != nil {
			return err
		}

		return s.show(answer, [][]string{
			{"Available:", formatBytes(answer.GetAvailableCapacity())},
			{"Smallest volume:", humanOrNothing(answer.GetMinimumVolumeSize())},
			{"Largest volume:", humanOrNothing(answer.GetMaximumVolumeSize())},
		})
	})
	cmd.Flags().Var(&parameters, "param", "a StorageClass parameter (repeatable)")
	cmd.Flags().StringArrayVar(&topology, "topology", nil, "the segments of one place, KEY=VALUE[,KEY=VALUE…]")
	use.register(cmd)

	return cmd
}

// humanOrNothing formats an optional number of protobuf.
func humanOrNothing(value interface{ GetValue() int64 }) string {
	if value.GetValue() == 0 {
		return dash
	}

	return formatBytes(value.GetValue())
}

func newCapabilitiesCommand(given *settings) *cobra.Command {
	return given.verb("capabilities", "Show the driver's name, readiness, and the capabilities of its services", exactly(0),
		func(ctx context.Context, s *session) error {
			info, err := s.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
			if err != nil {
				return err
			}

			probe, err := s.Probe(ctx, &csi.ProbeRequest{})
			if err != nil {
				return err
			}

			caps, err := s.Capabilities(ctx)
			if err != nil {
				return err
			}

			return s.show(answers{
				"info":        info,
				"probe":       probe,
				"plugin":      &csi.GetPluginCapabilitiesResponse{Capabilities: caps.Plugin},
				keyController: &csi.ControllerGetCapabilitiesResponse{Capabilities: caps.Controller},
				keyGroups:     &csi.GroupControllerGetCapabilitiesResponse{Capabilities: caps.GroupController},
				keyNode:       &csi.NodeGetCapabilitiesResponse{Capabilities: caps.Node},
			}, capabilityRows(info, probe, caps))
		})
}

func capabilityRows(info *csi.GetPluginInfoResponse, probe *csi.ProbeResponse, caps csiclient.Capabilities) [][]string {
	ready := "ready"
	if probe.GetReady() != nil && !probe.GetReady().GetValue() {
		ready = "not ready"
	}

	const heading = 2

	rows := make([][]string, 0, heading+len(caps.Plugin)+len(caps.Controller)+len(caps.GroupController)+len(caps.Node))
	rows = append(rows,
		[]string{"SERVICE", "CAPABILITY"},
		[]string{"identity", info.GetName() + " " + info.GetVendorVersion() + ", " + ready},
	)

	for _, capability := range caps.Plugin {
		name := capability.GetService().GetType().String()
		if expansion := capability.GetVolumeExpansion(); expansion != nil {
			name = "VOLUME_EXPANSION " + expansion.GetType().String()
		}

		rows = append(rows, []string{"plugin", name})
	}

	for _, capability := range caps.Controller {
		rows = append(rows, []string{keyController, capability.GetRpc().GetType().String()})
	}

	for _, capability := range caps.GroupController {
		rows = append(rows, []string{keyGroups, capability.GetRpc().GetType().String()})
	}

	for _, capability := range caps.Node {
		rows = append(rows, []string{keyNode, capability.GetRpc().GetType().String()})
	}

	return rows
}

package ctl

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/dustin/go-humanize"
	"github.com/spf13/pflag"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
)

var usageColumns = columns[*csi.VolumeUsage]{
	{header: "UNIT", text: func(u *csi.VolumeUsage) string { return u.GetUnit().String() }},
	{header: "TOTAL", text: func(u *csi.VolumeUsage) string { return formatAmount(u.GetUnit(), u.GetTotal()) }},
	{header: "USED", text: func(u *csi.VolumeUsage) string { return formatAmount(u.GetUnit(), u.GetUsed()) }},
	{header: "AVAILABLE", text: func(u *csi.VolumeUsage) string { return formatAmount(u.GetUnit(), u.GetAvailable()) }},
}

func formatAmount(unit csi.VolumeUsage_Unit, amount int64) string {
	if unit == csi.VolumeUsage_BYTES {
		return formatBytes(amount)
	}

	return humanize.Comma(amount)
}

func statsVerb() verb {
	request := &csi.NodeGetVolumeStatsRequest{}

	return verb{
		name: "stats", arguments: []argument{oneVolume}, short: "NodeGetVolumeStats",
		flags: func(flags *pflag.FlagSet) {
			flags.StringVar(&request.VolumePath, "path", "", "where the volume is published or staged (default: where it is mounted)")
			flags.StringVar(&request.StagingTargetPath, "staging", "", "where it is staged, if --path is not that")
		},
		run: func(ctx context.Context, s *session) error {
			request.VolumeId = s.args[0]

			if request.GetVolumePath() == "" {
				known, err := s.known(ctx, s.args[0])
				if err != nil {
					return err
				}

				if request.VolumePath = cmp.Or(append(known.Published, known.Staged)...); request.GetVolumePath() == "" && known.ID != "" {
					return fmt.Errorf("%s: %w", s.names.of(s.args[0]), errNotMounted)
				}
			}

			if request.GetVolumePath() == "" {
				return usage(fmt.Errorf("%w: --path, as the driver does not report where the volume is", errMissingFlag))
			}

			answer, err := s.NodeGetVolumeStats(ctx, request)

			return s.answer(answer, err, usageColumns.table(s.output, answer.GetUsage()...), s.args[0])
		},
	}
}

func nodeInfoVerb() verb {
	return verb{name: "info", short: "NodeGetInfo", run: func(ctx context.Context, s *session) error {
		answer, err := s.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})

		most := "the orchestrator's choice"
		if answer.GetMaxVolumesPerNode() > 0 {
			most = strconv.FormatInt(answer.GetMaxVolumesPerNode(), 10)
		}

		return s.answer(answer, err, [][]string{
			{"Node ID:", answer.GetNodeId()},
			{"Most volumes:", most},
			{"Topology:", formatPairs(answer.GetAccessibleTopology().GetSegments())},
		}, answer.GetNodeId())
	}}
}

func capacityVerb() verb {
	var (
		request  = &csi.GetCapacityRequest{}
		topology []string
		use      capabilityFlags
	)

	return verb{
		name: "capacity", short: "GetCapacity",
		flags: func(flags *pflag.FlagSet) {
			flags.Var((*keyValues)(&request.Parameters), "param", "a StorageClass parameter (repeatable)")
			flags.StringArrayVar(&topology, "topology", nil, "the segments of one place, KEY=VALUE[,KEY=VALUE…]")
			use.register(flags)
		},
		run: func(ctx context.Context, s *session) error {
			capability, err := use.capability()
			if err != nil {
				return err
			}

			places, err := topologies(topology)
			if err != nil {
				return err
			}

			request.VolumeCapabilities = []*csi.VolumeCapability{capability}
			if len(places) > 0 {
				request.AccessibleTopology = places[0]
			}

			answer, err := s.GetCapacity(ctx, request)

			return s.answer(answer, err, [][]string{
				{"Available:", formatBytes(answer.GetAvailableCapacity())},
				{"Smallest volume:", humanOrUnknown(answer.GetMinimumVolumeSize().GetValue())},
				{"Largest volume:", humanOrUnknown(answer.GetMaximumVolumeSize().GetValue())},
			})
		},
	}
}

func capabilitiesVerb() verb {
	return verb{
		name: "capabilities", short: "Show the driver's name, readiness, and the capabilities of its services",
		run: func(ctx context.Context, s *session) error {
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
			}, capabilityRows(info, probe, caps), info.GetName())
		},
	}
}

// formerCapabilities are those of CSI v1.12 whose numbers v1.13 reserves.
var formerCapabilities = map[string]string{keyController + " 11": "VOLUME_CONDITION", keyNode + " 4": "VOLUME_CONDITION"}

func capabilityRows(info *csi.GetPluginInfoResponse, probe *csi.ProbeResponse, caps csiclient.Capabilities) [][]string {
	ready := "ready"
	if probe.GetReady() != nil && !probe.GetReady().GetValue() {
		ready = "not ready"
	}

	rows := [][]string{
		{"SERVICE", "CAPABILITY"},
		{"identity", info.GetName() + " " + info.GetVendorVersion() + ", " + ready},
	}
	add := func(service string, capability fmt.Stringer) {
		rows = append(rows, []string{service, cmp.Or(formerCapabilities[service+" "+capability.String()], capability.String())})
	}

	for _, each := range caps.Plugin {
		if expansion := each.GetVolumeExpansion(); expansion != nil {
			rows = append(rows, []string{"plugin", "VOLUME_EXPANSION " + expansion.GetType().String()})
		} else {
			add("plugin", each.GetService().GetType())
		}
	}

	for _, each := range caps.Controller {
		add(keyController, each.GetRpc().GetType())
	}

	for _, each := range caps.GroupController {
		add(keyGroups, each.GetRpc().GetType())
	}

	for _, each := range caps.Node {
		add(keyNode, each.GetRpc().GetType())
	}

	return rows
}

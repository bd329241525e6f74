package ctl

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/dustin/go-humanize"
	"github.com/spf13/pflag"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
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

				request.VolumePath = cmp.Or(append(known.Published, known.Staged)...)

				switch {
				case known.ID == "":
					return usage(fmt.Errorf("%w: --path, as the driver does not report where the volume is", errMissingFlag))
				case request.GetVolumePath() == "":
					return fmt.Errorf("%s: %w", s.names.of(s.args[0]), errNotMounted)
				}
			}

			answer, err := s.NodeGetVolumeStats(ctx, request)

			return s.show(err, answer, usageColumns.table(s.output, answer.GetUsage()...), s.args[0])
		},
	}
}

var nodeInfoVerb = verb{name: "info", short: "NodeGetInfo", run: func(ctx context.Context, s *session) error {
	answer, err := s.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})

	most := "the orchestrator's choice"
	if answer.GetMaxVolumesPerNode() > 0 {
		most = strconv.FormatInt(answer.GetMaxVolumesPerNode(), 10)
	}

	return s.show(err, answer, [][]string{
		{"Node ID:", answer.GetNodeId()},
		{"Most volumes:", most},
		{"Topology:", formatPairs(answer.GetAccessibleTopology().GetSegments())},
	}, answer.GetNodeId())
}}

func capacityVerb() verb {
	var what createFlags

	return verb{
		name: "capacity", short: "GetCapacity", nameless: true,
		flags: func(flags *pflag.FlagSet) {
			flags.Var(keyValues(&what.parameters), "param", "a StorageClass parameter (repeatable)")
			flags.StringArrayVar(&what.topology, "topology", nil, "the segments of one place, KEY=VALUE[,KEY=VALUE…]")
			what.use.register(flags)
		},
		run: func(ctx context.Context, s *session) error {
			volume, err := what.request("")
			if err != nil {
				return err
			}

			request := &csi.GetCapacityRequest{Parameters: volume.GetParameters(), VolumeCapabilities: volume.GetVolumeCapabilities()}
			if places := volume.GetAccessibilityRequirements().GetRequisite(); len(places) > 0 {
				request.AccessibleTopology = places[0]
			}

			answer, err := s.GetCapacity(ctx, request)

			return s.show(err, answer, [][]string{
				{"Available:", formatBytes(answer.GetAvailableCapacity())},
				{"Smallest volume:", humanOrUnknown(answer.GetMinimumVolumeSize().GetValue())},
				{"Largest volume:", humanOrUnknown(answer.GetMaximumVolumeSize().GetValue())},
			})
		},
	}
}

var capabilitiesVerb = verb{
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

		return s.show(nil, answers{
			"info":         info,
			"probe":        probe,
			"plugin":       &csi.GetPluginCapabilitiesResponse{Capabilities: caps.Plugin},
			controllerPart: &csi.ControllerGetCapabilitiesResponse{Capabilities: caps.Controller},
			groupsPart:     &csi.GroupControllerGetCapabilitiesResponse{Capabilities: caps.GroupController},
			nodePart:       &csi.NodeGetCapabilitiesResponse{Capabilities: caps.Node},
		}, capabilityRows(info, probe, caps), info.GetName())
	},
}

// formerCapabilities are those of CSI v1.12 whose numbers v1.13 reserves.
var formerCapabilities = map[string]string{controllerPart + " 11": "VOLUME_CONDITION", nodePart + " 4": "VOLUME_CONDITION"}

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
		add(controllerPart, each.GetRpc().GetType())
	}

	for _, each := range caps.GroupController {
		add(groupsPart, each.GetRpc().GetType())
	}

	for _, each := range caps.Node {
		add(nodePart, each.GetRpc().GetType())
	}

	return rows
}

// directVolume is an assigned volume with its name, or id.
type directVolume struct {
	kata.AssignedVolume

	name string
}

var directColumns = columns[directVolume]{
	{header: "VOLUME", text: func(v directVolume) string { return v.name }},
	{text: func(v directVolume) string { return v.VolumeID }, id: true},
	{header: "TARGET", text: func(v directVolume) string { return v.TargetPath }},
	{header: "DEVICE", text: func(v directVolume) string { return v.Device }},
	{header: "FS", text: func(v directVolume) string { return v.FSType }},
	{header: "SIZE", text: func(v directVolume) string { return formatBytes(v.SizeBytes) }},
	{header: "PENDING", text: func(v directVolume) string { return humanOrUnknown(v.PendingBytes) }},
	{header: "OPTIONS", text: func(v directVolume) string { return strings.Join(v.Options, ",") }},
	{header: "SANDBOX", text: func(v directVolume) string { return v.Sandbox }},
}

var directVolumesVerb = verb{
	name: listName, short: "List the node's direct volumes and the sandboxes that use them",
	long: `The volumes that are published on the node behind the socket for a virtual machine to
mount: where, by which device, and the sandbox that has taken each of them. PENDING is
the size that the device has already and the filesystem in the guest has not.`,
	run: func(ctx context.Context, s *session) error {
		list, err := kata.List(ctx, s.Conn())
		if err == nil {
			err = s.learn(ctx, names.Volume)
		}

		return directColumns.show(s.printer, err, answers{"directVolumes": append([]kata.AssignedVolume{}, list...)},
			mapped(list, func(each kata.AssignedVolume) directVolume { return directVolume{each, s.names.of(each.VolumeID)} })...)
	},
}

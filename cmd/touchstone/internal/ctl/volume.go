package ctl

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/health"
)

// volume is a volume with what the driver reports of it beside CSI.
type volume struct {
	*csi.Volume

	name string
	// published is nil if the driver does not list the nodes.
	published interface{ GetPublishedNodeIds() []string }
	// known is empty if the driver reports no health.
	known health.VolumeReport
}

var volumeColumns = columns[volume]{
	{header: nameColumn, label: "Name:", text: func(v volume) string { return v.name }},
	{header: "ID", label: "Volume ID:", text: func(v volume) string { return v.GetVolumeId() }},
	{header: "SIZE", label: "Capacity:", text: func(v volume) string { return formatBytes(v.GetCapacityBytes()) }},
	{header: "USED", text: volume.used},
	{header: "FS", text: volume.filesystem},
	{header: "POOL", text: func(v volume) string { return v.known.Pool }},
	{header: "MOUNTED AT", text: func(v volume) string { return strings.Join(v.known.Published, ",") }},
	{header: "HEALTH", text: volume.condition},
	{header: "NODES", label: "Published to:", text: volume.nodes, wide: true},
	{header: "TOPOLOGY", label: "Topology:", text: func(v volume) string { return formatTopologies(v.GetAccessibleTopology()) }, wide: true},
	{header: "AT START", label: "Mounted at start:", text: func(v volume) string { return strings.Join(v.known.Persistent, ",") }, wide: true},
	{label: "Context:", text: func(v volume) string { return formatPairs(v.GetVolumeContext()) }},
}

// used is a measurement that may be old, and of a raw device none.
func (v volume) used() string {
	const recent = 10 * time.Second

	usage := v.known.Usage

	switch {
	case usage == nil || usage.At.IsZero():
		return ""
	case time.Since(usage.At) < recent:
		return formatBytes(usage.Bytes.Used)
	default:
		return fmt.Sprintf("%s (%s ago)", formatBytes(usage.Bytes.Used), since(usage.At))
	}
}

func (v volume) filesystem() string {
	if v.known.FSType != "" {
		return v.known.FSType
	}

	return map[string]string{"image": "raw block", "directory": "directory"}[v.known.Backing]
}

func (v volume) condition() string {
	switch {
	case v.known.ID == "":
		return ""
	case len(v.known.Conditions) == 0:
		return healthyWord
	default:
		return fmt.Sprintf("%s %s", v.known.Conditions[0].Status, v.known.Conditions[0].Reason)
	}
}

func (v volume) nodes() string {
	if v.published == nil {
		return ""
	}

	return orDash(strings.Join(v.published.GetPublishedNodeIds(), ","))
}

func volumeDeletion() verb {
	return deletion("DeleteVolume", manyVolumes, func(ctx context.Context, s *session, id string) error {
		_, err := s.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
		if status.Code(err) != codes.FailedPrecondition {
			return err
		}

		known, unknown := s.known(ctx, id)
		if unknown != nil {
			return err
		}

		return &explained{err, forPeople(known, err.Error())}
	})
}

func volumeListVerb() verb {
	return verb{
		name: listName, aliases: []string{"ls"}, short: "ListVolumes, all pages", lists: true,
		// It shows what ListVolumes returns, and in tables also what the driver's health report has of the
		// volumes: names, usage, paths and conditions.
		run: func(ctx context.Context, s *session) error {
			known := map[string]health.VolumeReport{}

			if report, err := s.ownReport(ctx); err == nil {
				for _, each := range report.Volumes {
					known[each.ID] = each
				}
			}

			entries, err := collect(s.Volumes(ctx, s.pageSize))
			if err != nil {
				return err
			}

			volumes, ids := make([]volume, len(entries)), make([]string, len(entries))

			for i, entry := range entries {
				ids[i] = entry.GetVolume().GetVolumeId()
				volumes[i] = volume{entry.GetVolume(), s.names[ids[i]], entry.GetStatus(), known[ids[i]]}
			}

			return s.show(&csi.ListVolumesResponse{Entries: entries}, volumeColumns.table(s.output, volumes...), ids...)
		},
	}
}

func volumeVerb() verb {
	return verb{
		name: getName, arguments: []argument{oneVolume}, short: "ControllerGetVolume, with the volume's health",
		run: func(ctx context.Context, s *session) error {
			answer, err := s.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: s.args[0]})
			if err != nil {
				return err
			}

			shown := volume{Volume: answer.GetVolume(), known: s.healthOf(ctx, s.args[0])}
			shown.name = s.names[s.args[0]]
			parts := answers{"volume": answer.GetVolume(), "health": shown.known}

			if answer.GetStatus() != nil {
				shown.published, parts["status"] = answer.GetStatus(), answer.GetStatus()
			}

			rows := volumeColumns.sheet(shown)
			if shown.known.ID == "" {
				return s.show(answer, rows, s.args[0])
			}

			return s.show(parts, append(rows, healthSheet(shown.known)...), s.args[0])
		},
	}
}

func modifyVerb() verb {
	request := &csi.ControllerModifyVolumeRequest{}

	return verb{
		name: "modify", arguments: []argument{oneVolume}, options: "--mutable KEY=VALUE…",
		short: "ControllerModifyVolume",
		long: `ControllerModifyVolume: the parameters of a VolumeAttributesClass. What is not
named stays as it is.`,
		example:  `  touchstone ctl volume modify data --mutable readIOPS=500 --mutable ioScheduler=none`,
		required: []string{"mutable"},
		flags: func(flags *pflag.FlagSet) {
			flags.Var((*keyValues)(&request.MutableParameters), "mutable", "a mutable parameter (repeatable)")
		},
		run: func(ctx context.Context, s *session) error {
			request.VolumeId = s.args[0]
			answer, err := s.ControllerModifyVolume(ctx, request)

			return s.answer(answer, err, [][]string{{"modified " + s.names.of(s.args[0])}}, s.args[0])
		},
	}
}

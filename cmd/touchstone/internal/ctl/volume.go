package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
)

var (
	errTwoSources = errors.New("a volume is made of one source: --from-snapshot or --from-volume")
	errRefused    = errors.New("the driver would refuse this")
	errTwice      = errors.New("nothing to delete: an argument before it is the same object")
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
	{header: "ID", label: "Volume ID:", text: func(v volume) string { return v.GetVolumeId() }, id: true},
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
	return cmp.Or(v.known.FSType, map[string]string{"image": "raw block", "directory": "directory"}[string(v.known.Backing)])
}

func (v volume) condition() string {
	switch {
	case v.known.ID == "":
		return ""
	case len(v.known.Conditions) == 0:
		return healthyWord
	default:
		return v.known.Conditions[0].Status.String() + " " + string(v.known.Conditions[0].Reason)
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

		known, _ := s.known(ctx, id)

		return &explained{err, forPeople(known, err.Error())}
	}, checkUnused)
}

// checkUnused refuses to delete a volume that is in use, as far as the driver reports it.
func checkUnused(ctx context.Context, s *session, id string) error {
	caps, err := s.Capabilities(ctx)
	if err != nil {
		return err
	}

	known, err := s.known(ctx, id)
	if err != nil {
		return err
	}

	found, err := getVolume(ctx, s.Client, caps, id)
	nodes, places := found.GetStatus().GetPublishedNodeIds(), append(slices.Clone(known.Published), known.Staged)

	switch {
	case status.Code(err) == codes.NotFound:
		return nil
	case err != nil:
		return err
	case len(nodes) > 0:
		err = fmt.Errorf("%w: volume %s is attached to %s; unpublish it there first", errRefused, id, strings.Join(nodes, ", "))
	case places[0] != "":
		err = fmt.Errorf("%w: volume %s is in use at %s; unpublish it first", errRefused, id, places[0])
	default:
		return nil
	}

	return &explained{err, forPeople(known, err.Error())}
}

// volumeListVerb shows what ListVolumes returns, and in tables also what the driver's health report has of the
// volumes: names, usage, paths and conditions.
var volumeListVerb = verb{
	name: listName, aliases: []string{"ls"}, short: "ListVolumes, all pages", lists: true,
	run: func(ctx context.Context, s *session) error {
		known := map[string]health.VolumeReport{}

		if report, err := s.ownReport(ctx); err == nil {
			for _, each := range report.Volumes {
				known[each.ID] = each
			}
		}

		entries, err := collect(s.Volumes(ctx, s.pageSize))

		return volumeColumns.show(s.printer, err, &csi.ListVolumesResponse{Entries: entries},
			mapped(entries, func(entry *csi.ListVolumesResponse_Entry) volume {
				id := entry.GetVolume().GetVolumeId()

				return volume{entry.GetVolume(), s.names[id], entry.GetStatus(), known[id]}
			})...)
	},
}

var volumeVerb = verb{
	name: getName, arguments: []argument{oneVolume}, short: "ControllerGetVolume, with the volume's health",
	run: func(ctx context.Context, s *session) error {
		answer, err := s.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: s.args[0]})
		if err != nil {
			return err
		}

		report, err := s.report(ctx, s.args)
		shown := volume{Volume: answer.GetVolume(), name: s.names[s.args[0]], known: only(report, err, s.args[0])}
		parts := answers{"volume": answer.GetVolume(), "health": shown.known}

		if answer.GetStatus() != nil {
			shown.published, parts["status"] = answer.GetStatus(), answer.GetStatus()
		}

		rows := volumeColumns.sheet(shown)
		if shown.known.ID == "" {
			return s.show(nil, answer, rows, s.args[0])
		}

		return s.show(nil, parts, append(rows, healthSheet(shown.known)...), s.args[0])
	},
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
			flags.Var(keyValues(&request.MutableParameters), "mutable", "a mutable parameter (repeatable)")
		},
		run: func(ctx context.Context, s *session) error {
			request.VolumeId = s.args[0]
			answer, err := s.ControllerModifyVolume(ctx, request)

			return s.show(err, answer, [][]string{{"modified " + s.names.of(s.args[0])}}, s.args[0])
		},
	}
}

// createFlags are the flags of a new volume.
type createFlags struct {
	required, limit int64
	parameters      map[string]string
	mutable         map[string]string
	topology        []string
	use             capabilityFlags
}

func (f *createFlags) register(flags *pflag.FlagSet) {
	flags.Var(size(&f.required), "size", "at least this large, such as 1Gi or 500M")
	flags.Var(keyValues(&f.mutable), "mutable", "a mutable parameter, as volume modify takes it (repeatable)")
	flags.Var(size(&f.limit), "limit", "at most this large")
	flags.Var(keyValues(&f.parameters), "param", "a StorageClass parameter (repeatable)")
	flags.StringArrayVar(&f.topology, "topology", nil,
		"where the volume must be reachable, KEY=VALUE[,KEY=VALUE…]; repeat for alternatives, the preferred first")
	f.use.register(flags)
}

// isGiven reports whether a flag that only a new volume has was given.
func (f *createFlags) isGiven() bool {
	return f.required != 0 || f.limit != 0 || len(f.parameters) > 0 || len(f.mutable) > 0 || len(f.topology) > 0
}

func (f *createFlags) request(name string) (*csi.CreateVolumeRequest, error) {
	capability, err := f.use.capability()
	places, placesErr := topologies(f.topology)
	request := &csi.CreateVolumeRequest{
		Name: name, Parameters: f.parameters, MutableParameters: f.mutable, VolumeCapabilities: []*csi.VolumeCapability{capability},
	}

	if f.required != 0 || f.limit != 0 {
		request.CapacityRange = &csi.CapacityRange{RequiredBytes: f.required, LimitBytes: f.limit}
	}

	if len(places) > 0 {
		request.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: places, Preferred: places}
	}

	return request, cmp.Or(err, placesErr)
}

func createVerb() verb {
	var (
		what                 createFlags
		ofSnapshot, ofVolume string
	)

	return verb{
		name: createName, arguments: []argument{newName}, short: "CreateVolume", progress: true,
		long: `CreateVolume. The call is idempotent by name: the same command again answers
with the same volume, another one under the same name is refused. With
--from-snapshot or --from-volume the new volume begins with the data of that
one; it may be larger, not smaller.`,
		example: `  touchstone ctl volume create data --size 1Gi --fs xfs
  touchstone ctl volume create raw --size 500M --block --param provisioning=thick
  touchstone ctl volume create shared --size 1Gi --param backing=directory
  touchstone ctl volume create twin --fs xfs --from-volume data`,
		flags: func(flags *pflag.FlagSet) {
			flags.Var(identifier(&ofSnapshot), "from-snapshot", "begin with the data of this snapshot")
			flags.Var(identifier(&ofVolume), "from-volume", "begin with the data of this volume")
			what.register(flags)
		},
		run: func(ctx context.Context, s *session) error {
			request, err := what.request(s.args[0])
			if err != nil {
				return err
			}

			err = errors.Join(s.resolve(ctx, names.Snapshot, &ofSnapshot), s.resolve(ctx, names.Volume, &ofVolume))
			kind := ""

			switch {
			case err != nil:
				return err
			case ofSnapshot != "" && ofVolume != "":
				return usage(errTwoSources)
			case ofSnapshot != "":
				kind, request.VolumeContentSource = kindRestore, csiclient.FromSnapshot(ofSnapshot)
			case ofVolume != "":
				kind, request.VolumeContentSource = kindClone, csiclient.FromVolume(ofVolume)
			}

			return s.create(ctx, kind, request)
		},
	}
}

// create makes the call and shows the volume. Copying a source may take long: kind is that of the copy.
func (s *session) create(ctx context.Context, kind string, request *csi.CreateVolumeRequest) error {
	answer, err := copying(ctx, s, kind, request.GetName(), func(ctx context.Context) (*csi.CreateVolumeResponse, error) {
		return s.CreateVolume(ctx, request)
	})
	if err != nil {
		return err
	}

	// A volume that existed already may have lost its data since.
	id := answer.GetVolume().GetVolumeId()
	known, err := s.known(ctx, id)
	s.names.add(id, request.GetName())
	rows := volumeColumns.sheet(volume{Volume: answer.GetVolume(), name: request.GetName()})

	for _, each := range known.Conditions {
		if each.View == controllerPart && (each.Status == health.Inaccessible || each.Status == health.DataLoss) {
			err = errors.Join(err, fmt.Errorf("volume %s exists: %w: %s %s: %s", known.Name, errUnhealthy, each.Status, each.Reason, each.Message))
		}
	}

	if err == nil {
		rows = titled("volume "+request.GetName()+" is ready", rows)
	}

	return s.show(err, answer, rows, id)
}

// deletion is a verb that makes one call for each given id. It continues after an error. With --dry-run it calls
// check in place of remove.
func deletion(
	call string, of argument, remove, check func(ctx context.Context, s *session, id string) error, further ...func(*pflag.FlagSet),
) verb {
	var ignoreNotFound, dryRun bool

	return verb{
		name: "delete", aliases: []string{"rm"}, arguments: []argument{of}, resolves: true,
		short: call + " for each",
		long: call + ` for each ` + string(of.kind) + `, by name or id. It continues after an error.
What is not there is an error of this command, though not of the call, unless the driver
does not list names.`,
		flags: func(flags *pflag.FlagSet) {
			flags.BoolVar(&dryRun, "dry-run", false, "only print what would be deleted, and what the driver would refuse")
			flags.BoolVar(&ignoreNotFound, "ignore-not-found", false, "succeed where there is nothing to delete")

			for _, define := range further {
				define(flags)
			}
		},
		run: func(ctx context.Context, s *session) error {
			deleted, doing, done, do := []string{}, "deleted", "deleted ", remove
			if dryRun {
				doing, done, do = "would_delete", "would delete "+string(of.kind)+" ", check
			}

			listed, known, err := s.objects(ctx, of.kind)
			if err != nil {
				return err
			}

			var rows [][]string

			refused := forEach(s.args, func(given string) error {
				id, err := find(listed, of.kind, given)

				switch {
				case known && err != nil && ignoreNotFound:
					return nil
				case known && err != nil:
					return fmt.Errorf("nothing to delete: %w", err)
				case slices.Contains(deleted, id):
					return errTwice
				}

				if err := do(ctx, s, id); err != nil {
					return err
				}

				deleted, rows = append(deleted, id), append(rows, []string{done + given})

				return nil
			})

			return s.show(refused, answers{doing: deleted}, rows, deleted...)
		},
	}
}

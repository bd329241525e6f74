package ctl

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/pflag"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
)

var errTwoSources = errors.New("a volume is made of one source: --from-snapshot or --from-volume")

// createFlags are the flags of a new volume.
type createFlags struct {
	required, limit size
	parameters      keyValues
	mutable         keyValues
	topology        []string
	use             capabilityFlags
}

func (f *createFlags) register(flags *pflag.FlagSet) {
	flags.Var(&f.required, "size", "at least this large, such as 1Gi or 500M")
	flags.Var(&f.mutable, "mutable", "a mutable parameter, as volume modify takes it (repeatable)")
	flags.Var(&f.limit, "limit", "at most this large")
	flags.Var(&f.parameters, "param", "a StorageClass parameter (repeatable)")
	flags.StringArrayVar(&f.topology, "topology", nil,
		"where the volume must be reachable, KEY=VALUE[,KEY=VALUE…]; repeat for alternatives, the preferred first")
	f.use.register(flags)
}

func (f *createFlags) request(name string) (*csi.CreateVolumeRequest, error) {
	request := &csi.CreateVolumeRequest{Name: name, Parameters: f.parameters, MutableParameters: f.mutable}

	capability, err := f.use.capability()
	if err != nil {
		return nil, err
	}

	request.VolumeCapabilities = []*csi.VolumeCapability{capability}

	if f.required != 0 || f.limit != 0 {
		request.CapacityRange = capacityRange(f.required, f.limit)
	}

	places, err := topologies(f.topology)
	if err != nil {
		return nil, err
	}

	if len(places) > 0 {
		request.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: places, Preferred: places}
	}

	return request, nil
}

func capacityRange(required, limit size) *csi.CapacityRange {
	return &csi.CapacityRange{RequiredBytes: int64(required), LimitBytes: int64(limit)}
}

func createVerb() verb {
	var (
		what                 createFlags
		ofSnapshot, ofVolume identifier
	)

	return verb{
		name: "create", arguments: []argument{newName}, short: "CreateVolume", progress: true,
		long: `CreateVolume. The call is idempotent by name: the same command again answers
with the same volume, another one under the same name is refused. With
--from-snapshot or --from-volume the new volume begins with the data of that
one; it may be larger, not smaller.`,
		example: `  touchstone ctl volume create data --size 1Gi --fs xfs
  touchstone ctl volume create raw --size 500M --block --param provisioning=thick
  touchstone ctl volume create shared --size 1Gi --param backing=directory
  touchstone ctl volume create twin --fs xfs --from-volume data`,
		flags: func(flags *pflag.FlagSet) {
			flags.Var(&ofSnapshot, "from-snapshot", "begin with the data of this snapshot")
			flags.Var(&ofVolume, "from-volume", "begin with the data of this volume")
			what.register(flags)
		},
		run: func(ctx context.Context, s *session) error {
			request, err := what.request(s.args[0])
			if err != nil {
				return err
			}

			err = errors.Join(s.resolve(ctx, names.Snapshot, (*string)(&ofSnapshot)), s.resolve(ctx, names.Volume, (*string)(&ofVolume)))
			if err != nil {
				return err
			}

			switch {
			case ofSnapshot != "" && ofVolume != "":
				return usage(errTwoSources)
			case ofSnapshot != "":
				request.VolumeContentSource = csiclient.FromSnapshot(string(ofSnapshot))
			case ofVolume != "":
				request.VolumeContentSource = csiclient.FromVolume(string(ofVolume))
			}

			return s.create(ctx, request)
		},
	}
}

// create makes the call and shows the volume. Copying a source may take long.
func (s *session) create(ctx context.Context, request *csi.CreateVolumeRequest) error {
	kind := ""

	switch source := request.GetVolumeContentSource(); {
	case source.GetSnapshot() != nil:
		kind = kindRestore
	case source.GetVolume() != nil:
		kind = kindClone
	}

	answer, err := copying(ctx, s, kind, request.GetName(), func(ctx context.Context) (*csi.CreateVolumeResponse, error) {
		return s.CreateVolume(ctx, request)
	})
	if err != nil {
		return err
	}

	// A volume that existed already may have lost its data since.
	known, err := s.known(ctx, answer.GetVolume().GetVolumeId())
	s.names.add(answer.GetVolume().GetVolumeId(), request.GetName())
	rows := volumeColumns.sheet(volume{Volume: answer.GetVolume(), name: request.GetName()})

	for _, each := range known.Conditions {
		if each.View == viewController && (each.Status == health.Inaccessible || each.Status == health.DataLoss) {
			err = errors.Join(err, fmt.Errorf("volume %s exists: %w: %s %s: %s", known.Name, errUnhealthy, each.Status, each.Reason, each.Message))
		}
	}

	if err == nil {
		rows = append([][]string{{"volume " + request.GetName() + " is ready"}}, rows...)
	}

	return s.answer(answer, err, rows, answer.GetVolume().GetVolumeId())
}

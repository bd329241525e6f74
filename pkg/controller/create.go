package controller

import (
	"cmp"
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/objects"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// CreateVolume makes a volume, or returns the one of that name if it is what is
// asked for (CSI v1.13, CreateVolume).
func (s *Service) CreateVolume(ctx context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	wanted, err := s.parseCreate(request)
	if err != nil {
		return nil, err
	}

	call := operation.Call{Key: "name " + wanted.name, Method: "CreateVolume", Request: request}

	return operation.DoLogged(ctx, s.config.Log, s.ops, call, func(ctx context.Context) (_ *csi.CreateVolumeResponse, err error) {
		defer errdefs.Wrapf(&err, "create volume %q", wanted.name)

		made, err := s.ensureVolume(ctx, wanted)
		if err != nil {
			return nil, err
		}

		if err := s.config.Point.At(ctx, operation.VolumeRecorded, made.ID, made.Name); err != nil {
			return nil, err
		}

		if known, _ := s.health.Monitor.Get(made.ID); known == nil {
			s.health.Monitor.Suspect(made.ID)
		}

		return &csi.CreateVolumeResponse{Volume: describe(s.advertised(made))}, nil
	})
}

func (s *Service) ensureVolume(ctx context.Context, wanted *createRequest) (*record.Volume, error) {
	if _, existing, ok := s.catalog.Volumes.Lookup(record.NameIndex, wanted.name); ok && existing.Phase == record.PhaseReady {
		return existing, checkSameVolume(existing, wanted)
	}

	if err := cmp.Or(s.checkLargest(wanted.size), s.segments.CheckRequirement(wanted.topology)); err != nil {
		return nil, err
	}

	parameters, err := s.askClaim(ctx, wanted)
	if err != nil {
		return nil, err
	}

	switch {
	case wanted.source.SnapshotID != "":
		return s.restore(ctx, wanted, parameters)
	case wanted.source.VolumeID != "":
		return s.clone(ctx, wanted, parameters)
	default:
		return s.createEmpty(ctx, wanted, s.newVolume(wanted, parameters, wanted.size))
	}
}

// newVolume describes the volume that is made of the request, with the parameters and the size that the claim and
// the source lead to.
func (s *Service) newVolume(wanted *createRequest, parameters volume.Parameters, size int64) *record.Volume {
	return &record.Volume{
		ID: volume.NewID(), Name: wanted.name, CapacityBytes: size, Source: wanted.source,
		DirectByClaim: parameters.DirectAssign && !wanted.parameters.DirectAssign,
		Properties: &record.Properties{
			Parameters: parameters, Capabilities: wanted.capabilities, Mutable: wanted.mutable, Segments: s.segments,
		},
		Phase: record.PhaseReady, Pristine: wanted.source.IsZero() && s.has(capability.PublishUnpublishVolume),
		SizeLimit: wanted.pool.Backing(parameters.Backing).SizeLimit(),
	}
}

func (s *Service) createEmpty(ctx context.Context, wanted *createRequest, fresh *record.Volume) (_ *record.Volume, err error) {
	s.creating.Store(fresh.ID, nil)
	defer s.creating.Delete(fresh.ID)

	if fresh.IsThick() {
		// Otherwise a crash would leave a full-size image without a record.
		fresh.Phase = record.PhaseCreating
		if err := s.catalog.RecordVolume(ctx, fresh, wanted.pool); err != nil {
			return nil, err
		}

		fresh = fresh.Clone()
		fresh.Phase = record.PhaseReady
	} else if err := s.catalog.CheckCapacity(ctx, wanted.pool, fresh.CapacityBytes); err != nil {
		// Before an image is made; record checks again.
		return nil, err
	}

	defer func() {
		if err != nil {
			err = s.remover.UndoVolume(ctx, fresh, wanted.pool, err)
		}
	}()

	if err := allocateNew(fresh, wanted.pool); err != nil {
		return fresh, err
	}

	if err := s.config.Point.At(ctx, operation.VolumeAllocated, fresh.ID, fresh.Name); err != nil {
		return fresh, err
	}

	return fresh, s.catalog.RecordVolume(ctx, fresh, wanted.pool)
}

// checkSameVolume returns ALREADY_EXISTS unless v is what is wanted.
func checkSameVolume(v *record.Volume, wanted *createRequest) error {
	exists := func(what string, has, asked any) error {
		return rpc.Errorf(codes.AlreadyExists, "volume %s exists with %s %v, not %v; choose another name or delete it",
			v.ID, what, has, asked)
	}

	asked := v.ApplyClaim(wanted.parameters)
	if !v.Source.IsZero() && !wanted.fsNamed {
		// It has that of its source, which may be gone by now.
		asked.FSType = v.Parameters.FSType
	}

	differences := ""
	for _, each := range wanted.capabilities {
		differences = cmp.Or(differences, v.CapabilityDifferences(each))
	}

	required, limit := wanted.asked.GetRequiredBytes(), wanted.asked.GetLimitBytes()

	switch {
	case v.CapacityBytes < required || limit > 0 && v.CapacityBytes > limit:
		return exists("capacity", v.CapacityBytes, fmt.Sprintf("required %d, limit %d", required, limit))
	case v.Source != wanted.source:
		return exists("content of", v.Source, wanted.source)
	case v.Parameters != asked:
		return exists("parameters", v.Parameters.Context(), asked.Context())
	case differences != "":
		return rpc.Errorf(codes.AlreadyExists, "volume %s exists with other volume capabilities: %s; choose another name or delete it",
			v.ID, differences)
	case !v.Mutable.With(wanted.mutable).Equal(v.Mutable):
		return exists("mutable parameters", v.Mutable.Parameters(), wanted.mutable.Parameters())
	case v.Segments.CheckRequirement(wanted.topology) != nil:
		return exists("topology", v.Segments, "the requisite one")
	default:
		return nil
	}
}

// allocateNew allocates the volume's storage; it syncs it too if no
// ControllerPublishVolume will follow.
func allocateNew(fresh *record.Volume, p *pool.Pool) error {
	allocate := objects.AllocateDurably
	if fresh.Pristine {
		allocate = objects.Allocate
	}

	if err := allocate(fresh, p); err != nil || fresh.Mutable.IsZero() {
		return err
	}

	return p.SetMutable(fresh.ID, fresh.Mutable)
}

// askClaim returns the parameters of the request, with direct assignment if the claim asks for it. Only a volume
// that is about to be made asks: from then on its record says what the answer was
// (Volume.DirectByClaim), whatever the claim says later. Errors are those of
// Config.DirectByClaim, and INVALID_ARGUMENT.
func (s *Service) askClaim(ctx context.Context, wanted *createRequest) (volume.Parameters, error) {
	if s.config.DirectByClaim == nil || wanted.parameters.DirectAssign {
		return wanted.parameters, nil
	}

	claim := wanted.claim
	if claim.namespace == "" || claim.name == "" {
		s.config.Log.WarnContext(ctx, "the call names no claim whose annotations could be read; "+
			"run the provisioner with --extra-create-metadata", "volume", wanted.name, "annotation", volume.KeySkipHostmount)

		return wanted.parameters, nil
	}

	asks, err := s.config.DirectByClaim(ctx, claim.namespace, claim.name)
	if err != nil || !asks {
		return wanted.parameters, err
	}

	parameters, err := wanted.parameters.WithDirectAssign()
	for _, each := range wanted.capabilities {
		err = cmp.Or(err, parameters.CheckDirectAssign(each))
	}

	if err != nil {
		err = rpc.Invalid("claim %s/%s asks with its annotation %s for what its volume can't have: %w",
			claim.namespace, claim.name, volume.KeySkipHostmount, err)
	}

	return parameters, err
}

package controller

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// ControllerModifyVolume changes mutable parameters of a volume, in use or not
// (CSI v1.13, ControllerModifyVolume).
func (s *Service) ControllerModifyVolume(
	ctx context.Context, request *csi.ControllerModifyVolumeRequest,
) (*csi.ControllerModifyVolumeResponse, error) {
	found, err := s.catalog.FindVolume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}

	if len(request.GetMutableParameters()) == 0 {
		return nil, rpc.Invalid("mutable_parameters are missing")
	}

	mutable, err := s.parseMutable(request.GetMutableParameters())
	if err != nil {
		return nil, err
	}

	wanted := changeRequest{mutable: mutable}
	// What is wrong with this request alone is no other's failure.
	if err := s.checkChange(ctx, found, wanted); err != nil {
		return nil, err
	}

	if _, err := s.requestChange(ctx, found, wanted); err != nil {
		return nil, err
	}

	return &csi.ControllerModifyVolumeResponse{}, nil
}

// parseMutable reads mutable_parameters. Errors: INVALID_ARGUMENT.
func (s *Service) parseMutable(given map[string]string) (volume.Mutable, error) {
	if len(given) > 0 && !s.has(capability.ModifyVolume) {
		return volume.Mutable{}, rpc.Invalid("mutable_parameters must be empty, as the capability %s is not advertised",
			capability.ModifyVolume)
	}

	mutable, err := volume.ParseMutable(given)
	if err != nil {
		return volume.Mutable{}, rpc.Invalid("mutable_parameters: %w", err)
	}

	return mutable, nil
}

// checkMutable refuses with INVALID_ARGUMENT what such a volume can't have, or
// what the machine can't do.
func (s *Service) checkMutable(parameters volume.Parameters, mutable volume.Mutable) error {
	if mutable.IsZero() {
		return nil
	}

	if name := mutable.NeedsDevice(); name != "" && parameters.Backing == volume.BackingDirectory {
		return rpc.Invalid("mutable_parameters: %s: a directory has no device that it could hold for; use backing=image", name)
	}

	if err := s.config.LocalNode.CheckSupported(mutable); err != nil {
		return rpc.Invalid("mutable_parameters: %w", err)
	}

	return nil
}

// applyMutable publishes the mutable parameters of the volume's record to all nodes and
// applies them on this one.
func (s *Service) applyMutable(ctx context.Context, v *record.Volume, p *pool.Pool) error {
	if err := publishMutable(v, p); err != nil {
		return fmt.Errorf("recorded, but not in force: %w", err)
	}

	if err := s.config.LocalNode.ApplyMutable(ctx, v.ID); err != nil {
		return fmt.Errorf("recorded, but not in force on node %s: %w", s.config.NodeID, err)
	}

	return nil
}

// publishMutable writes into the pool, where every node of the volume reads it,
// unless it is there.
func publishMutable(v *record.Volume, p *pool.Pool) error {
	// An unreadable file is written again.
	if there, err := p.Mutable(v.ID); err == nil && there.Equal(v.Mutable) {
		return nil
	}

	return p.SetMutable(v.ID, v.Mutable)
}

// recoverMutable makes a pool say what the records do: a crash can come between the
// one and the other.
func (s *Service) recoverMutable(ctx context.Context, p *pool.Pool) {
	var given []*record.Volume

	s.catalog.EachReadyVolume(func(v *record.Volume) {
		if v.Parameters.Pool == p.Name() && !v.Mutable.IsZero() {
			given = append(given, v)
		}
	})

	for _, v := range given {
		// One unhealthy volume must not affect the others.
		if err := s.applyMutable(ctx, v, p); err != nil {
			s.config.Log.Error("the mutable parameters of a volume are not in force", "volume", v.ID, "error", err)
		}
	}

	if err := p.RemoveUnusedMutable(ctx, s.existsOrCreating); err != nil {
		s.config.Log.Error("cannot remove mutable parameters of volumes that are gone", "pool", p.Name(), "error", err)
	}
}

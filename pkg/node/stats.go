package node

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/pkg/mount"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
)

// NodeGetVolumeStats answers with the bytes and inodes of the volume's
// filesystem, or with the size of its device (CSI v1.13, NodeGetVolumeStats). For a
// directory it is what its files take, and what is left in the pool.
func (s *Service) NodeGetVolumeStats(
	ctx context.Context, request *csi.NodeGetVolumeStatsRequest,
) (*csi.NodeGetVolumeStatsResponse, error) {
	if err := rpc.CheckVolumeID(request.GetVolumeId()); err != nil {
		return nil, rpc.Status(err)
	}

	path := plain(request.GetVolumePath())
	if path == "" {
		return nil, rpc.Invalid("volume_path is missing")
	}

	use, err := s.usedAt(request.GetVolumeId(), path)
	if err != nil {
		return nil, rpc.Status(err)
	}

	usage, err := s.usage(ctx, use, path)
	if err != nil {
		return nil, rpc.Status(err)
	}

	return &csi.NodeGetVolumeStatsResponse{Usage: usage}, nil
}

// usedAt returns the volume's record if it was staged or published at the
// path, else NOT_FOUND.
func (s *Service) usedAt(id, path string) (*Use, error) {
	if ephemeral, ok := s.inline.at(id, path); ok {
		return ephemeral.use(), nil
	}

	use, known := s.uses.get(id)
	if !known {
		return nil, rpc.Errorf(codes.NotFound, "volume %s is not in use on this node", id)
	}

	if _, published := use.publication(path); !published && path != use.StagingPath {
		return nil, rpc.Errorf(codes.NotFound, "volume %s is not at %s", id, path)
	}

	return use, nil
}

func (s *Service) usage(ctx context.Context, use *Use, path string) ([]*csi.VolumeUsage, error) {
	if use.Capability.Block {
		return s.deviceUsage(use, path)
	}

	place, err := s.places.Find(path)
	if err != nil {
		return nil, rpc.Errorf(codes.NotFound, "volume %s: %w", use.VolumeID, err)
	}
	defer place.Close()

	// Whatever else is mounted there by now, its usage is not the volume's.
	if point, mounted, err := place.Mounted(); err != nil || !mounted || !s.ours(use, point) {
		return nil, rpc.Errorf(codes.NotFound, "volume %s is not mounted at %s any more", use.VolumeID, path)
	}

	usage, err := place.Usage()
	if err != nil {
		return nil, err
	}

	if !use.image() {
		if usage, err = s.directoryUsage(ctx, use, usage); err != nil {
			return nil, err
		}
	}

	amounts := []*csi.VolumeUsage{volumeUsage(csi.VolumeUsage_BYTES, usage.Bytes)}
	if usage.Inodes.Total > 0 {
		amounts = append(amounts, volumeUsage(csi.VolumeUsage_INODES, usage.Inodes))
	}

	return amounts, nil
}

// directoryUsage replaces what all of the pool's filesystem holds by what the
// volume's directory does: it may have what it has and what is left.
func (s *Service) directoryUsage(ctx context.Context, use *Use, of mount.Usage) (mount.Usage, error) {
	place, err := s.poolOf(use)
	if err != nil {
		return mount.Usage{}, err
	}

	own, err := place.DirectoryUsage(ctx, use.VolumeID)
	if err != nil {
		return mount.Usage{}, err
	}

	of.Bytes.Used, of.Bytes.Total = own.Bytes, own.Bytes+of.Bytes.Available
	if of.Inodes.Total > 0 {
		of.Inodes.Used, of.Inodes.Total = own.Inodes, own.Inodes+of.Inodes.Available
	}

	return of, nil
}

func volumeUsage(unit csi.VolumeUsage_Unit, amount mount.Amount) *csi.VolumeUsage {
	return &csi.VolumeUsage{Unit: unit, Total: amount.Total, Used: amount.Used, Available: amount.Available}
}

func (s *Service) deviceUsage(use *Use, path string) ([]*csi.VolumeUsage, error) {
	if path != use.StagingPath && !s.mountedAt(use, path) {
		return nil, rpc.Errorf(codes.NotFound, "volume %s is not at %s any more", use.VolumeID, path)
	}

	status, attached, err := s.loops.Status(s.devices.get(use.VolumeID).staged)
	if err != nil {
		return nil, err
	}

	if !attached {
		return nil, rpc.Errorf(codes.NotFound, "volume %s is not attached any more", use.VolumeID)
	}

	return []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: status.SizeBytes}}, nil
}

package node

import (
	"context"
	"strconv"
	"sync/atomic"

	"github.com/touchstone-csi/touchstone/pkg/operation"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
)

// onVolume calls do as an operation on the volume that belongs to its caller:
// when ctx ends, do's ends, and when onVolume returns, do is not running and will
// not begin. Error: do's; ctx's; those of operation.Do.
func (s *Service) onVolume(ctx context.Context, volumeID, method string, do func(context.Context) error) error {
	// Owned by the first of the operation and the caller's timeout.
	var taken atomic.Bool

	ended := make(chan error, 1)

	// Never to be joined: do is this caller's.
	call := rpc.VolumeCall(volumeID, method+" "+strconv.FormatUint(s.occasions.Add(1), 10), method, nil)

	go func() {
		_, err := operation.Do(context.WithoutCancel(ctx), s.ops, call, func(operation context.Context) (struct{}, error) {
			if !taken.CompareAndSwap(false, true) {
				return struct{}{}, context.Cause(ctx)
			}

			bounded, cancel := context.WithCancelCause(operation)
			defer cancel(nil)

			unlink := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
			defer unlink()

			return struct{}{}, do(bounded)
		})
		ended <- err
	}()

	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		if taken.CompareAndSwap(false, true) {
			return context.Cause(ctx)
		}

		return <-ended
	}
}

// revokeLostDevices revokes the publications of a direct volume whose devices are gone.
func (s *Service) revokeLostDevices(ctx context.Context, id string) error {
	return s.onVolume(ctx, id, "revoke", func(context.Context) error {
		use, known := s.stagedVolumes.Get(id)
		if !known {
			return nil
		}

		return s.access.RevokeLostDevices(use)
	})
}

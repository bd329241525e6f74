package node

import (
	"context"
	"sync/atomic"

	"github.com/touchstone-csi/touchstone/internal/operation"
)

// ownOperations runs the node's own operations on volumes, beside those of calls. None of them
// joins another one, which may have read what the new one is about already.
type ownOperations struct{ group *operation.Group }

// start runs do as an operation on the volume, which continues when ctx ends.
func (o *ownOperations) start(ctx context.Context, volumeID, method string, do func(context.Context) error) error {
	call := operation.VolumeCall(volumeID, method, method, nil)
	call.Exclusive = true

	_, err := operation.Do(ctx, o.group, call, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, do(ctx)
	})

	return err
}

// run runs do as an operation on the volume that belongs to its caller: when ctx ends, do's
// ends, and when run returns, do is not running and will not begin. Error: do's; ctx's;
// those of operation.Do.
func (o *ownOperations) run(ctx context.Context, volumeID, method string, do func(context.Context) error) error {
	// Owned by the first of the operation and the caller's timeout.
	var taken atomic.Bool

	ended := make(chan error, 1)

	go func() {
		ended <- o.start(context.WithoutCancel(ctx), volumeID, method, func(within context.Context) error {
			if !taken.CompareAndSwap(false, true) {
				return context.Cause(ctx)
			}

			bounded, cancel := context.WithCancelCause(within)
			defer cancel(nil)

			unlink := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
			defer unlink()

			return do(bounded)
		})
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

package node

import (
	"context"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/pkg/node/ephemeral"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// lifecycle stages, publishes and expands volumes, and undoes that. Its methods are called in an operation on the
// volume, or by Recover before the first call, take parsed values and start no operation. Service has the RPCs,
// which do.
type lifecycle struct {
	*parts

	config    *Config
	ephemeral *ephemeral.Volumes
}

// IsPublished reports whether the publication exists.
func (l *lifecycle) IsPublished(v *staged.Volume, at staged.Publication) (bool, error) {
	return l.ways.For(v).IsPublished(v, at)
}

// run runs change as the operation of the call, and returns the answer. Its error says what the call is doing.
func run[T any](
	ctx context.Context, config *Common, call operation.Call, doing string, answer T, change func(context.Context) error,
) (T, error) {
	return operation.DoLogged(ctx, config.Log, config.Operations, call, func(ctx context.Context) (_ T, err error) {
		defer errdefs.Wrapf(&err, "%s", doing)

		return answer, change(ctx)
	})
}

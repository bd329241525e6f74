package access

import (
	"context"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// mounted is what mounted images and directories have in common: the volume is mounted at the
// staging path, and bound from there to the target paths.
type mounted struct{ *Provider }

func (m mounted) Unstage(ctx context.Context, v *staged.Volume) error {
	return m.unstageMount(ctx, v)
}

func (m mounted) IsStaged(v *staged.Volume) (bool, error) {
	return m.observe.IsMountedAt(v, v.StagingPath)
}

func (m mounted) IsInUse(v *staged.Volume) (bool, error) { return m.IsStaged(v) }

func (m mounted) Publish(ctx context.Context, v *staged.Volume, p staged.Publication, target *mount.Target) error {
	return m.publishStaged(ctx, v, p, target)
}

func (m mounted) Republish(_ context.Context, v *staged.Volume, p staged.Publication) error {
	return m.checkNotCovered(v, p)
}

func (m mounted) IsPublished(v *staged.Volume, p staged.Publication) (bool, error) {
	return m.isMountPublished(v, p.TargetPath)
}

func (m mounted) Unpublish(v *staged.Volume, p staged.Publication, target *mount.Target) error {
	return m.unpublishMount(v, p, target)
}

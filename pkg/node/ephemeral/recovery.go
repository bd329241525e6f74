package ephemeral

import (
	"context"
	"errors"
	"path"
	"strings"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// RemoveUnmounted removes the pool's volumes that are not mounted any more, because of a reboot or a
// crash while they were created. It follows the opening of the pool.
func (v *Volumes) RemoveUnmounted(ctx context.Context, poolName string) {
	for _, each := range v.config.Records.All() {
		if each.Parameters.Pool != poolName {
			continue
		}

		call := operation.VolumeCall(each.VolumeID, "", "recover", nil)

		_, err := operation.Do(ctx, v.config.Operations, call, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, v.recover(ctx, each.VolumeID, each.Publication.TargetPath)
		})
		if err != nil {
			// One volume that fails must not affect the others.
			v.config.Log.Error("an ephemeral volume could not be recovered", "volume", each.VolumeID, "error", err)
		}
	}
}

func (v *Volumes) recover(ctx context.Context, id, target string) error {
	recorded, known := v.config.Records.At(id, target)
	if !known {
		return nil
	}

	there, err := v.isPublished(recorded)
	if err != nil || there {
		return err
	}

	v.config.Log.Info("an ephemeral volume is not published any more", "volume", id, "target", target)

	return v.remove(ctx, recorded)
}

// RemoveUnrecorded removes the ephemeral volume that is mounted at a target without a record, and
// reports whether it found one.
func (v *Volumes) RemoveUnrecorded(ctx context.Context, id string, at *mount.Target) (found bool, err error) {
	unrecorded, found, err := v.findUnrecorded(id, at)
	if err != nil || !found {
		return false, err
	}

	return true, v.remove(ctx, unrecorded)
}

// findUnrecorded returns the ephemeral volume that is mounted at a target without a
// record: such a volume belongs to its target only. Its content has an id of its own, never the CO's.
func (v *Volumes) findUnrecorded(id string, at *mount.Target) (*staged.Inline, bool, error) {
	point, mounted, err := at.Mounted()
	if err != nil || !mounted {
		return nil, false, err
	}

	content := path.Base(point.RootPath())

	if number, isLoop := point.LoopDevice(); isLoop {
		attachment, _, err := v.config.Loops.Attachment(number)
		if err != nil {
			return nil, false, err
		}

		content = strings.TrimSuffix(path.Base(attachment.BackingPath), layout.ImageSuffix)
	}

	if !volume.IsID(content) || content == id {
		return nil, false, nil
	}

	if _, known := v.config.Records.VolumeOf(staged.ContentID(content)); known {
		return nil, false, nil
	}

	var unknown error

	for _, backing := range volume.Backings() {
		for _, name := range v.config.Pools.Ephemeral.Names() {
			lost := &staged.Inline{
				VolumeID: id, ContentID: staged.ContentID(content), Parameters: volume.Parameters{Pool: name, Backing: backing},
				Publication: staged.Publication{TargetPath: at.Path()},
			}

			found, err := v.config.Observer.IsMountOf(lost.StagedVolume(), point)
			if err == nil && found {
				err = v.config.Pools.CheckStored(lost.StagedVolume())
			}

			switch {
			case errors.Is(err, pool.ErrMissing): // it is not in this pool
			case err != nil:
				unknown = errors.Join(unknown, err)
			case found:
				return lost, true, nil
			}
		}
	}

	return nil, false, unknown
}

package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/dustin/go-humanize"
	"github.com/moby/sys/mountinfo"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
)

func (d *demo) create(v *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		with := fmt.Sprintf("name=demo-%s size=%s", v.kind, formatBytes(v.size)) + formatParameters(v.parameters)
		if v.source != nil {
			with += " " + v.source.short()
			v.checksum = v.source.contentChecksum()
		}

		answer, err := d.CreateVolume(ctx, v.request())
		if err != nil {
			return outcome{with: with}, err
		}

		v.publication.VolumeID = answer.GetVolume().GetVolumeId()
		v.publication.VolumeContext = answer.GetVolume().GetVolumeContext()
		v.undo = append(v.undo, func(ctx context.Context) error { return d.callDeleteVolume(ctx, &v.publication) })

		v.capacity = answer.GetVolume().GetCapacityBytes()
		if v.capacity < v.size {
			return outcome{with: with}, fmt.Errorf("%w: %s", errTooSmall, formatBytes(v.capacity))
		}

		if v.source != nil {
			return outcome{with: with, got: v.short()}, nil
		}

		return outcome{with: with, got: v.publication.VolumeID}, nil
	}
}

func (d *demo) createAgain(v *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		answer, err := d.CreateVolume(ctx, v.request())
		if id := answer.GetVolume().GetVolumeId(); err == nil && id != v.publication.VolumeID {
			err = fmt.Errorf("%w: volume %s", errNotIdempotent, id)
		}

		return outcome{with: "same arguments", got: "the same volume"}, err
	}
}

func (d *demo) attach(v *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		err := v.callWithUndo(ctx, d.Attach, d.Detach)

		return outcome{with: v.short() + " node=" + nodeID, got: "attached" + formatParameters(v.publication.PublishContext)}, err
	}
}

func (d *demo) stage(v *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		if err := v.callWithUndo(ctx, d.Stage, d.Unstage); err != nil {
			return outcome{with: v.short()}, err
		}

		got := "device ready"
		if mount, err := mountAt(v.publication.StagingPath); err == nil {
			got = mount.FSType + " of " + mount.Source
		}

		return outcome{with: v.short() + " staging=…/" + v.kind, got: got}, nil
	}
}

func (d *demo) publish(v *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		with := v.short() + " target=…/" + v.kind
		if err := v.callWithUndo(ctx, d.Publish, d.Unpublish); err != nil {
			return outcome{with: with}, err
		}

		// The kernel's mount table, not the driver's answer.
		if _, err := mountAt(v.publication.TargetPath); err != nil {
			return outcome{with: with}, err
		}

		return outcome{with: with, got: "mounted"}, nil
	}
}

func (v *volume) write(context.Context) (outcome, error) {
	var err error

	v.checksum, err = writePayload(payloadPath(v.publication.TargetPath, v.block))
	if err != nil {
		return outcome{with: formatBytes(payloadBytes)}, err
	}

	return outcome{with: formatBytes(payloadBytes) + " of random data", got: "sha256 " + v.checksum[:shownDigits]}, nil
}

func (v *volume) verify(when string) func(context.Context) (outcome, error) {
	return func(context.Context) (outcome, error) {
		return outcome{with: when, got: "sha256 " + v.checksum[:min(shownDigits, len(v.checksum))] + " as written"},
			verifyPayload(payloadPath(v.publication.TargetPath, v.block), v.checksum)
	}
}

func (d *demo) getStats(v *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		answer, err := d.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{
			VolumeId:   v.publication.VolumeID,
			VolumePath: v.publication.TargetPath,
		})
		if err != nil {
			return outcome{with: v.short()}, err
		}

		var (
			before = v.total
			got    []string
		)

		v.total = 0

		for _, usage := range answer.GetUsage() {
			switch usage.GetUnit() {
			case csi.VolumeUsage_BYTES:
				v.total = usage.GetTotal()
				got = append(got, formatUsage(usage, formatBytes))
			case csi.VolumeUsage_INODES:
				got = append(got, formatUsage(usage, humanize.Comma)+" inodes")
			default:
			}
		}

		return outcome{with: v.short(), got: strings.Join(got, ", ")}, v.checkTotal(before)
	}
}

// repeatCall repeats a call that is in effect, and verifies with the kernel's mount table
// that it changed nothing.
func (d *demo) repeatCall(
	v *volume, with string, call func(context.Context, *csiclient.Publication) error,
) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		done := outcome{with: v.short() + " " + with, got: "OK, nothing changed"}

		before, err := mountsBelow(d.paths.root)
		if err != nil {
			return done, err
		}

		if err := call(ctx, &v.publication); err != nil {
			return done, err
		}

		after, err := mountsBelow(d.paths.root)
		if err == nil && !slices.EqualFunc(before, after, sameMount) {
			err = fmt.Errorf("%w: %d then %d", errMountsDiffer, len(before), len(after))
		}

		return done, err
	}
}

func sameMount(a, b *mountinfo.Info) bool { return a.ID == b.ID && a.Mountpoint == b.Mountpoint }

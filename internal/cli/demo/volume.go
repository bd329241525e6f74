package demo

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
)

const (
	payloadBytes = 16 * mebi
	fileMode     = 0o600
)

// volume is a volume of the demo. Its methods are steps.
type volume struct {
	csiclient.Publication
	kind

	demo    *demo
	request *csi.CreateVolumeRequest
	// copyFrom makes the request one for a copy, and returns the id of its source.
	copyFrom func() (id string)

	// written is the checksum of its data.
	written string
	// capacity is in bytes as the driver last returned it, total as the statistics did.
	capacity, total int64
}

func (d *demo) newVolume(kind kind) *volume {
	return &volume{
		demo: d, kind: kind,
		request: &csi.CreateVolumeRequest{
			Name:               "demo-" + kind.name,
			CapacityRange:      &csi.CapacityRange{RequiredBytes: kind.size},
			VolumeCapabilities: []*csi.VolumeCapability{kind.capability},
			Parameters:         kind.parameters,
		},
		Publication: csiclient.Publication{
			Capability: kind.capability, NodeID: nodeID,
			StagingPath: filepath.Join(d.path("kubelet"), "plugins", kind.name, "globalmount"),
			TargetPath:  filepath.Join(d.path("kubelet"), "pods", kind.name, "volume"),
		},
	}
}

// newClone returns a volume that is created as a clone of this one.
func (v *volume) newClone(kind kind) *volume {
	clone := v.demo.newVolume(kind)
	clone.copyFrom = func() (id string) {
		clone.request.VolumeContentSource, clone.written = csiclient.FromVolume(v.VolumeID), v.written
		return v.VolumeID
	}
	return clone
}

func (v *volume) isDirectory() bool { return v.parameters["backing"] == "directory" }

func (v *volume) create(ctx context.Context) (string, error) {
	text := fmt.Sprintf("name=%s size=%s%s", v.request.GetName(), formatBytes(v.size), formatParameters(v.parameters))
	if v.copyFrom != nil {
		text += " from=" + endOfID(v.copyFrom())
	}

	answer, err := v.demo.CreateVolume(ctx, v.request)
	created := answer.GetVolume()
	v.VolumeID, v.VolumeContext, v.capacity = created.GetVolumeId(), created.GetVolumeContext(), created.GetCapacityBytes()

	return text + " → " + v.VolumeID, cmp.Or(err, check(v.capacity >= v.size, "a capacity of %s", formatBytes(v.capacity)))
}

func (v *volume) attach(ctx context.Context) (string, error) {
	err := v.demo.Attach(ctx, &v.Publication)
	return short(v.VolumeID) + " node=" + nodeID + " → attached" + formatParameters(v.PublishContext), err
}

func (v *volume) stage(ctx context.Context) (string, error) {
	err := v.demo.Stage(ctx, &v.Publication)

	result := "device ready"
	if mount, err := mountAt(v.StagingPath); err == nil {
		result = mount.FSType + " of " + mount.Source
	}
	return short(v.VolumeID) + " staging=…/" + v.name + " → " + result, err
}

func (v *volume) publish(ctx context.Context) (string, error) {
	err := v.demo.Publish(ctx, &v.Publication)
	if err == nil {
		// The kernel's mount table, not the driver's answer.
		_, err = mountAt(v.TargetPath)
	}
	return short(v.VolumeID) + " target=…/" + v.name + " → mounted", err
}

// dataPath returns the path to which data is written: a file in a mounted volume, or the
// device of a raw block volume.
func (v *volume) dataPath() string {
	if v.capability.GetBlock() != nil {
		return v.TargetPath
	}
	return filepath.Join(v.TargetPath, "data")
}

// write writes random bytes to the volume and syncs them.
func (v *volume) write(context.Context) (string, error) {
	data := make([]byte, payloadBytes)
	_, _ = rand.Read(data) // It never fails.
	v.written = checksum(data)

	file, err := os.OpenFile(v.dataPath(), os.O_WRONLY|os.O_CREATE, fileMode)
	if err == nil {
		_, err = file.Write(data)
		err = errors.Join(err, file.Sync(), file.Close())
	}
	return fmt.Sprintf("%s of random data → sha256 %.12s", formatBytes(payloadBytes), v.written), err
}

// verify drops the page cache first, so that the data is read from the volume and not from memory.
func (v *volume) verify(when string) action {
	return func(context.Context) (string, error) {
		file, err := os.Open(v.dataPath())
		if err != nil {
			return when, err
		}
		defer file.Close()

		data := make([]byte, payloadBytes)
		err = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
		_, readErr := io.ReadFull(file, data)
		sum := checksum(data)
		return strings.TrimSpace(fmt.Sprintf("%s → sha256 %.12s as written", when, sum)),
			cmp.Or(err, readErr, check(sum == v.written, "sha256 %.12s, but %.12s was written", sum, v.written))
	}
}

func checksum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// getStats compares the size in the statistics with the capacity, and with the size before the
// volume was expanded. The size of a directory is the pool's.
func (v *volume) getStats(ctx context.Context) (string, error) {
	answer, err := v.demo.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: v.VolumeID, VolumePath: v.TargetPath})

	before := v.total
	texts := make([]string, 0, len(answer.GetUsage()))
	for _, usage := range answer.GetUsage() {
		format, unit := humanize.Comma, " inodes"
		if usage.GetUnit() == csi.VolumeUsage_BYTES {
			format, unit, v.total = formatBytes, "", usage.GetTotal()
		}
		text := format(usage.GetTotal()) + unit
		if usage.GetUsed()+usage.GetAvailable() > 0 { // They are unknown of a raw device.
			text = format(usage.GetUsed()) + " of " + text + " used"
		}
		texts = append(texts, text)
	}
	return short(v.VolumeID) + " → " + strings.Join(texts, ", "), cmp.Or(err,
		check(v.total > before || v.isDirectory(), "a size of %s, after %s", formatBytes(v.total), formatBytes(before)),
		check(v.total == v.capacity || v.total < v.capacity && v.capability.GetBlock() == nil || v.isDirectory(),
			"a size of %s for a capacity of %s", formatBytes(v.total), formatBytes(v.capacity)))
}

func (v *volume) expand(ctx context.Context) (string, error) {
	answer, err := v.demo.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId:         v.VolumeID,
		CapacityRange:    &csi.CapacityRange{RequiredBytes: v.grown},
		VolumeCapability: v.capability,
	})
	v.capacity = answer.GetCapacityBytes()

	onNode := answer.GetNodeExpansionRequired()
	return fmt.Sprintf("%s size=%s → larger, node_expansion_required=%v", short(v.VolumeID), formatBytes(v.grown), onNode), cmp.Or(err,
		check(v.capacity >= v.grown, "a capacity of %s", formatBytes(v.capacity)),
		check(onNode != v.isDirectory(), "node_expansion_required=%v", onNode))
}

func (v *volume) expandOnNode(ctx context.Context) (string, error) {
	_, err := v.demo.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
		VolumeId:          v.VolumeID,
		VolumePath:        v.TargetPath,
		StagingTargetPath: v.StagingPath,
		VolumeCapability:  v.capability,
		CapacityRange:     &csi.CapacityRange{RequiredBytes: v.grown},
	})
	return short(v.VolumeID) + " → grown while in use", err
}

func (v *volume) unpublish(ctx context.Context) (string, error) {
	err := v.demo.Unpublish(ctx, &v.Publication)
	_, lstatErr := os.Lstat(v.TargetPath)
	return short(v.VolumeID) + " → the target path is gone",
		cmp.Or(err, check(errors.Is(lstatErr, fs.ErrNotExist), "%s exists", v.TargetPath))
}

func (v *volume) unstage(ctx context.Context) (string, error) {
	err := v.demo.Unstage(ctx, &v.Publication)
	mounts, mountsErr := mountsBelow(v.StagingPath)
	devices, devicesErr := loopsBelow(v.demo.root)
	attached := slices.ContainsFunc(devices, func(device loop.Attachment) bool { return strings.Contains(device.BackingPath, v.VolumeID) })

	if err = cmp.Or(err, mountsErr, devicesErr, check(len(mounts) == 0 && !attached, "the kernel still uses it")); err == nil {
		// The orchestrator made the staging directory, so it removes it.
		err = os.Remove(v.StagingPath)
	}
	return short(v.VolumeID) + " → unmounted, device free", err
}

func (v *volume) detach(ctx context.Context) (string, error) {
	return short(v.VolumeID) + " node=" + nodeID + " → detached", v.demo.Detach(ctx, &v.Publication)
}

func (v *volume) delete(ctx context.Context) (string, error) {
	_, err := v.demo.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v.VolumeID})
	return short(v.VolumeID) + " → gone", err
}

// verifyUUIDDiffersFrom reads both superblocks from their devices. XFS would not mount two
// filesystems with one UUID, but a reader of the demo may not know that.
func (v *volume) verifyUUIDDiffersFrom(source *volume) action {
	return func(context.Context) (string, error) {
		first, firstErr := source.filesystemUUID()
		second, secondErr := v.filesystemUUID()
		return "of both → " + endOfID(first) + " and " + endOfID(second),
			cmp.Or(firstErr, secondErr, check(first != second, "both have %s", first))
	}
}

func (v *volume) filesystemUUID() (string, error) {
	mount, err := mountAt(v.StagingPath)
	if err != nil {
		return "", err
	}
	device, err := os.Open(mount.Source)
	if err != nil {
		return "", err
	}
	defer device.Close()
	return filesystem.UUID(device)
}

// formatParameters returns the sorted parameters, each preceded by a space.
func formatParameters(m map[string]string) string {
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(m)) {
		text.WriteString(" " + key + "=" + m[key])
	}

	return text.String()
}

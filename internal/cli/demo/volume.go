package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/dustin/go-humanize"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
)

const (
	directoryMode = 0o750
	mode          = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER

	// Close to the minimum of each filesystem; all volumes are thin.
	small, smallGrown = 64 * mebi, 128 * mebi
	xfs, xfsGrown     = 300 * mebi, 400 * mebi
	restoredBytes     = 500 * mebi
	btrfs, btrfsGrown = 256 * mebi, 512 * mebi
)

// directory is a backing, and the kind of the volume that has it.
const directory = "directory"

// Failures that the demo detects.
var (
	errNotIdempotent = errors.New("the repeated call returned another result")
	errTargetExists  = errors.New("the target path still exists")
	errTooSmall      = errors.New("that is less than was requested")
	errWrongSize     = errors.New("the size is not the volume's")
	errStillInUse    = errors.New("the kernel still uses it")
	errMountsDiffer  = errors.New("the mounts changed")
	errNoBytes       = errors.New("the statistics lack the bytes")
	errNotListed     = errors.New("the list lacks an entry")
)

// volume is a volume of the demo.
type volume struct {
	undoStack

	kind        string
	parameters  map[string]string
	size, grown int64
	block       bool
	// source is the snapshot or volume from which the volume is created, or nil.
	source contentSource

	publication csiclient.Publication
	checksum    string
	// capacity is in bytes as the driver last returned it, total as the statistics did.
	capacity, total int64
}

// newVolumes returns the volumes that are created empty.
func newVolumes(paths workPaths, withBtrfs bool) []*volume {
	all := []*volume{
		newFilesystemVolume("ext4", small, smallGrown),
		newFilesystemVolume("xfs", xfs, xfsGrown),
		{kind: "raw-block", size: small, grown: smallGrown, block: true, publication: csiclient.Publication{
			Capability: csiclient.BlockCapability(mode),
		}},
		{
			kind: directory, size: small, grown: smallGrown,
			parameters:  map[string]string{"backing": directory},
			publication: csiclient.Publication{Capability: csiclient.MountCapability(mode, "")},
		},
	}
	if withBtrfs {
		all = append(all, newFilesystemVolume("btrfs", btrfs, btrfsGrown))
	}

	for _, v := range all {
		v.setPaths(paths)
	}

	return all
}

// setPaths sets the node and the paths at which the volume will be used.
func (v *volume) setPaths(paths workPaths) {
	v.publication.NodeID = nodeID
	v.publication.StagingPath = filepath.Join(paths.kubelet, "plugins", v.kind, "globalmount")
	v.publication.TargetPath = filepath.Join(paths.kubelet, "pods", v.kind, "volume")
}

func newFilesystemVolume(name string, size, grown int64) *volume {
	return &volume{kind: name, size: size, grown: grown, publication: csiclient.Publication{
		Capability: csiclient.MountCapability(mode, name),
	}}
}

func withArticle(kind string) string {
	if kind == "ext4" || kind == "xfs" {
		return "An " + kind
	}

	return "A " + kind
}

func (v *volume) request() *csi.CreateVolumeRequest {
	request := &csi.CreateVolumeRequest{
		Name:               "demo-" + v.kind,
		CapacityRange:      &csi.CapacityRange{RequiredBytes: v.size},
		VolumeCapabilities: []*csi.VolumeCapability{v.publication.Capability},
		Parameters:         v.parameters,
	}
	if v.source != nil {
		request.VolumeContentSource = v.source.content()
	}

	return request
}

// checkTotal compares the statistics with the requested size, and with the statistics
// before the volume was expanded.
func (v *volume) checkTotal(before int64) error {
	switch {
	case v.total == 0:
		return errNoBytes
	case v.parameters["backing"] == directory:
		return nil // Its size is the pool's.
	case v.total > v.capacity || v.block && v.total != v.capacity:
		return fmt.Errorf("%w: %s for a capacity of %s", errWrongSize, formatBytes(v.total), formatBytes(v.capacity))
	case v.total <= before:
		return fmt.Errorf("%w: %s as before", errTooSmall, formatBytes(v.total))
	default:
		return nil
	}
}

// formatUsage omits the used part if it is unknown, as of a raw device.
func formatUsage(usage *csi.VolumeUsage, write func(int64) string) string {
	if usage.GetUsed() == 0 && usage.GetAvailable() == 0 {
		return write(usage.GetTotal())
	}

	return write(usage.GetUsed()) + " of " + write(usage.GetTotal()) + " used"
}

// callWithUndo records the reverse of a call before it makes the call: an interrupted call
// may have had its effect.
func (v *volume) callWithUndo(ctx context.Context, call, reverse func(context.Context, *csiclient.Publication) error) error {
	v.undo = append(v.undo, func(ctx context.Context) error { return reverse(ctx, &v.publication) })

	return call(ctx, &v.publication)
}

func (v *volume) short() string { return "volume=…" + endOfID(v.publication.VolumeID) }

// endOfID returns the last digits of an id: UUIDv7s of one second differ only there.
func endOfID(id string) string {
	const shown = 6

	return id[max(0, len(id)-shown):]
}

func formatBytes(n int64) string {
	if n < 0 {
		return humanize.Comma(n) + " B"
	}

	return humanize.IBytes(uint64(n))
}

// formatParameters returns the sorted parameters, each preceded by a space.
func formatParameters(m map[string]string) string {
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(m)) {
		text.WriteString(" " + key + "=" + m[key])
	}

	return text.String()
}

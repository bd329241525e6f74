package crash_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/queue"
)

const (
	mib   = 1 << 20
	chunk = 64 << 10
	// expansions bound how large a volume gets.
	expansions = 4
	// files, or slots of a device, hold the data of a volume.
	files = 6
)

// sum is a checksum of data.
type sum = [sha256.Size]byte

// kind is one way to have a volume.
type kind struct {
	name         string
	parameters   map[string]string
	fsType       string
	block        bool
	bytes, grows int64
}

func kinds() []kind {
	thick := map[string]string{"provisioning": "thick"}

	return []kind{
		{name: "ext4", fsType: "ext4", bytes: 16 * mib, grows: 8 * mib},
		{name: "ext4 thick", fsType: "ext4", parameters: thick, bytes: 16 * mib, grows: 8 * mib},
		{name: "xfs", fsType: "xfs", bytes: 300 * mib, grows: 16 * mib},
		{name: "btrfs", fsType: "btrfs", bytes: 256 * mib, grows: 16 * mib},
		{name: "block", block: true, bytes: 8 * mib, grows: 4 * mib},
		{name: "block thick", block: true, parameters: thick, bytes: 8 * mib, grows: 4 * mib},
		{name: "directory", parameters: map[string]string{"backing": "directory"}, bytes: 8 * mib, grows: 4 * mib},
	}
}

func (k kind) image() bool { return k.parameters["backing"] != "directory" }

func (k kind) capability() *csi.VolumeCapability {
	// It allows two targets on one node.
	const mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER

	if k.block {
		return csiclient.BlockCapability(mode)
	}

	return csiclient.MountCapability(mode, k.fsType)
}

// phase is the acknowledged phase of a volume's lifecycle.
type phase int

const (
	absent phase = iota
	created
	attached
	staged
	deleted
)

// target is one of the two paths at which a volume may be published.
type target string

const (
	writable target = "writable"
	readOnly target = "read-only"
)

// volume is what the CO knows about one volume.
type volume struct {
	random *rand.Rand
	source *rand.ChaCha8
	kind   kind
	name   string
	claim  csiclient.Publication
	phase  phase
	// published are the targets of acknowledged publications.
	published map[target]bool
	// capacity is acknowledged, in bytes; device is what the node has
	// acknowledged to know of it.
	capacity, device int64
	// from is what the volume is to be made of; nil is nothing.
	from *csi.VolumeContentSource
	// readAhead is the acknowledged read-ahead of its devices, in KiB, if it has any. It is that of its
	// creation until it is modified.
	readAhead int64
	// behind means that NodeExpandVolume is due.
	behind bool
	// durable means that its image or directory is there after a power failure. The start makes the image of
	// an attached volume again until a staging has made it durable, of which filled says that it needs none.
	durable, filled bool
	// data are the checksums of what was written and fsynced, by file or by
	// offset in a device.
	data map[int64]sum
	// pending is a call of which the outcome is not known.
	pending *step
}

// step is one call and what its acknowledgement means.
type step struct {
	name string
	call func(ctx context.Context, co *csiclient.Client) error
	// then is nil where the truth stays as it was.
	then func()
	// undo may replace a retry; nil if only a retry is sensible.
	undo func() *step
	// at is the target concerned, if any.
	at target
}

func newVolume(site *site, source *rand.ChaCha8, name string) *volume {
	random := rand.New(source)
	all := kinds()

	return &volume{
		readAhead: anyReadAhead(random),
		random:    random, source: source, name: name, kind: all[random.IntN(len(all))],
		claim: csiclient.Publication{
			NodeID:      nodeID,
			StagingPath: filepath.Join(site.kubelet(), "staging", name),
			// Each target is a file beneath it.
			TargetPath: filepath.Join(site.kubelet(), "pods", name),
		},
		published: map[target]bool{}, data: map[int64]sum{},
	}
}

func (v *volume) at(place target) *csiclient.Publication {
	claim := v.claim
	claim.TargetPath = filepath.Join(v.claim.TargetPath, string(place))
	claim.ReadOnly = place == readOnly

	return &claim
}

func (v *volume) create() *step {
	wanted := v.kind.bytes
	if v.from != nil {
		wanted = v.capacity
	}

	return &step{name: "create", call: func(ctx context.Context, co *csiclient.Client) error {
		answer, err := co.CreateVolume(ctx, &csi.CreateVolumeRequest{
			MutableParameters: v.mutable(v.readAhead),
			Name:              v.name, Parameters: v.kind.parameters, VolumeContentSource: v.from,
			VolumeCapabilities: []*csi.VolumeCapability{v.kind.capability()},
			CapacityRange:      &csi.CapacityRange{RequiredBytes: wanted},
		})
		if err != nil {
			return err
		}

		v.claim.VolumeID = answer.GetVolume().GetVolumeId()
		v.claim.VolumeContext = answer.GetVolume().GetVolumeContext()
		v.claim.Capability = v.kind.capability()
		v.capacity = answer.GetVolume().GetCapacityBytes()

		return nil
	}, then: func() {
		v.phase = created
		v.filled = v.from != nil || v.kind.parameters["provisioning"] == "thick"
		v.durable = v.filled
	}}
}

func (v *volume) attach() *step {
	return &step{
		name: "attach", undo: v.detach, then: func() {
			v.phase, v.durable = attached, true
			v.filled = v.filled || v.kind.block || !v.kind.image()
		},
		call: func(ctx context.Context, co *csiclient.Client) error { return co.Attach(ctx, &v.claim) },
	}
}

func (v *volume) detach() *step {
	return &step{
		name: "detach", then: func() { v.phase, v.durable = created, v.filled },
		call: func(ctx context.Context, co *csiclient.Client) error { return co.Detach(ctx, &v.claim) },
	}
}

func (v *volume) stage() *step {
	return &step{
		name: "stage", undo: v.unstage,
		then: func() { v.phase, v.behind, v.device, v.filled = staged, false, v.capacity, true },
		call: func(ctx context.Context, co *csiclient.Client) error { return co.Stage(ctx, &v.claim) },
	}
}

func (v *volume) unstage() *step {
	return &step{
		name: "unstage", then: func() { v.phase, v.behind = attached, false },
		call: func(ctx context.Context, co *csiclient.Client) error { return co.Unstage(ctx, &v.claim) },
	}
}

func (v *volume) publish(place target) *step {
	return &step{
		name: "publish", at: place, undo: func() *step { return v.unpublish(place) },
		then: func() { v.published[place] = true },
		call: func(ctx context.Context, co *csiclient.Client) error { return co.Publish(ctx, v.at(place)) },
	}
}

func (v *volume) unpublish(place target) *step {
	return &step{
		name: "unpublish", at: place, then: func() { delete(v.published, place) },
		call: func(ctx context.Context, co *csiclient.Client) error { return co.Unpublish(ctx, v.at(place)) },
	}
}

func (v *volume) delete() *step {
	return &step{
		name: "delete", then: func() { v.phase = deleted },
		call: func(ctx context.Context, co *csiclient.Client) error {
			_, err := co.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v.claim.VolumeID})

			return err
		},
	}
}

func (v *volume) expand() *step {
	wanted := v.capacity + v.kind.grows

	return &step{name: "expand", then: func() {
		v.capacity = wanted
		v.behind = v.phase == staged && v.kind.image()
	}, call: func(ctx context.Context, co *csiclient.Client) error {
		answer, err := co.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
			VolumeId: v.claim.VolumeID, CapacityRange: &csi.CapacityRange{RequiredBytes: wanted},
		})
		if err == nil && answer.GetCapacityBytes() != wanted {
			return fmt.Errorf("%w: %d bytes, not %d", errWrong, answer.GetCapacityBytes(), wanted)
		}

		return err
	}}
}

// modify changes the read-ahead of an image's devices.
func (v *volume) modify(readAhead int64) *step {
	return &step{name: "modify", then: func() { v.readAhead = readAhead }, call: func(ctx context.Context, co *csiclient.Client) error {
		_, err := co.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{
			VolumeId: v.claim.VolumeID, MutableParameters: v.mutable(readAhead),
		})

		return err
	}}
}

// mutable returns the parameters of a read-ahead. A directory has no device.
func (v *volume) mutable(readAhead int64) map[string]string {
	if !v.kind.image() {
		return nil
	}

	return map[string]string{"readAheadKiB": strconv.FormatInt(readAhead, 10)}
}

// anyReadAhead is one that a device does not have by itself.
func anyReadAhead(random *rand.Rand) int64 { return 512 + 4*random.Int64N(100) }

func (v *volume) expandOnNode() *step {
	size := v.capacity
	claim := v.claim.StagingPath

	if place, ok := v.anyTarget(); ok {
		claim = v.at(place).TargetPath
	}

	return &step{
		name: "expand on the node", then: func() { v.behind, v.device = false, size },
		call: func(ctx context.Context, co *csiclient.Client) error {
			_, err := co.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
				VolumeId: v.claim.VolumeID, VolumePath: claim, CapacityRange: &csi.CapacityRange{RequiredBytes: size},
			})
			if status.Code(err) == codes.FailedPrecondition && v.kind.fsType == "ext4" {
				return nil // this kernel grows it with the next staging
			}

			return err
		},
	}
}

var errWrong = errors.New("wrong answer")

// read compares all data with the checksums, and what was modified with the device.
func (v *volume) read(place target) *step {
	return &step{name: "read", at: place, call: func(context.Context, *csiclient.Client) error {
		return errors.Join(v.holds(place), v.hasReadAhead())
	}}
}

// checkLimit compares the size of a directory with the one that was acknowledged.
func (v *volume) checkLimit(site *site, place target) *step {
	return &step{name: "statistics", at: place, call: func(ctx context.Context, co *csiclient.Client) error {
		if v.kind.image() || !site.limits {
			return nil
		}

		answer, err := co.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{
			VolumeId: v.claim.VolumeID, VolumePath: v.at(place).TargetPath,
		})
		if err != nil {
			return err
		}

		for _, usage := range answer.GetUsage() {
			if usage.GetUnit() == csi.VolumeUsage_BYTES && usage.GetTotal() == v.capacity {
				return nil
			}
		}

		return fmt.Errorf("%w: %v of a directory with %d bytes", errWrong, answer.GetUsage(), v.capacity)
	}}
}

func (v *volume) write() *step {
	return &step{name: "write", at: writable, call: func(context.Context, *csiclient.Client) error {
		data := make([]byte, chunk)
		_, _ = v.source.Read(data)
		slot := v.random.Int64N(files)

		if v.kind.block && slot == 0 {
			slot = v.device/chunk - 1 // what an expansion has added
		}

		if err := v.put(slot, data); err != nil {
			return err
		}

		v.data[slot] = sha256.Sum256(data)

		return nil
	}}
}

func (v *volume) put(slot int64, data []byte) error {
	path, offset, flags := v.dataAt(writable, slot)

	file, err := os.OpenFile(path, os.O_RDWR|flags, 0o600)
	if err != nil {
		return err
	}

	_, err = file.WriteAt(data, offset)

	return errors.Join(err, file.Sync(), file.Close())
}

func (v *volume) holds(place target) error {
	for slot, want := range v.data {
		path, offset, _ := v.dataAt(place, slot)

		file, err := os.Open(path)
		if err != nil {
			return err
		}

		data := make([]byte, chunk)
		_, err = file.ReadAt(data, offset)
		err = errors.Join(err, file.Close())
		if err != nil {
			return err
		}

		if sha256.Sum256(data) != want {
			return fmt.Errorf("%w: %s at %d does not hold what was written and fsynced", errWrong, path, offset)
		}
	}

	if !v.kind.block {
		return nil
	}

	return v.hasSize(place)
}

// hasReadAhead compares the read-ahead of the volume's devices with the one that was acknowledged.
func (v *volume) hasReadAhead() error {
	if !v.kind.image() {
		return nil
	}

	all, err := loop.NewLoops(loop.LoopsOptions{}).Attachments()
	if err != nil {
		return err
	}

	found := 0

	for _, each := range all {
		if filepath.Base(each.BackingPath) != v.claim.VolumeID+".img" {
			continue
		}

		found++

		has, err := queue.New(queue.DefaultSysBlock).Get(fmt.Sprint("loop", each.Number))
		if err != nil {
			return err
		}

		if has.ReadAheadKiB != v.readAhead {
			return fmt.Errorf("%w: %s of volume %s reads %d KiB ahead, %d were acknowledged",
				errWrong, each.Path, v.claim.VolumeID, has.ReadAheadKiB, v.readAhead)
		}
	}

	if found == 0 {
		return fmt.Errorf("%w: volume %s has no device", errWrong, v.claim.VolumeID)
	}

	return nil
}

func (v *volume) hasSize(place target) error {
	device, err := os.Open(v.at(place).TargetPath)
	if err != nil {
		return err
	}
	defer device.Close()

	size, err := device.Seek(0, io.SeekEnd)
	if err == nil && size < v.device {
		return fmt.Errorf("%w: %s has %d bytes, %d were acknowledged", errWrong, device.Name(), size, v.device)
	}

	return err
}

func (v *volume) dataAt(place target, slot int64) (path string, offset int64, flags int) {
	if v.kind.block {
		return v.at(place).TargetPath, slot * chunk, 0
	}

	return filepath.Join(v.at(place).TargetPath, "data-"+strconv.FormatInt(slot, 10)), 0, os.O_CREATE
}

func (v *volume) anyTarget() (target, bool) {
	for _, place := range []target{writable, readOnly} {
		if v.published[place] {
			return place, true
		}
	}

	return "", false
}

package syscallfault_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
)

const (
	mib     = 1 << 20
	payload = 64 << 10
)

// kind is one way to have a volume.
type kind struct {
	name         string
	parameters   map[string]string
	fsType       string
	block        bool
	direct       bool
	inline       bool
	bytes, grows int64
}

func (k *kind) image() bool { return k.parameters["backing"] != "directory" }

func (k *kind) capability() *csi.VolumeCapability {
	const mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER

	if k.block {
		return csiclient.BlockCapability(mode)
	}

	return csiclient.MountCapability(mode, k.fsType)
}

// volume is what the CO knows of one volume, as acknowledged.
type volume struct {
	csiclient.Publication

	kind     *kind
	name     string
	capacity int64

	created, attached, staged, published bool
	// data was written and synced.
	data []byte
}

type snapshot struct {
	id, name string
	created  bool
	data     []byte
}

// model is what the CO knows of everything on a site.
type model struct {
	volumes   []*volume
	snapshots []*snapshot
}

func (s *site) newVolume(k *kind, name string) *volume {
	v := &volume{kind: k, name: name, capacity: k.bytes, Publication: csiclient.Publication{
		NodeID: nodeID, Capability: k.capability(),
		StagingPath: filepath.Join(s.kubelet(), "staging", name),
		TargetPath:  filepath.Join(s.kubelet(), "pods", name, "target"),
	}}
	if k.inline {
		v.VolumeID = "csi-" + strings.Repeat("0123456789abcdef", 4)
		v.VolumeContext = map[string]string{"csi.storage.k8s.io/ephemeral": "true", "size": "16Mi"}

		if !k.image() {
			v.VolumeContext["backing"] = "directory"
		}
	}

	s.model.volumes = append(s.model.volumes, v)

	return v
}

func (v *volume) dataPath() string {
	if v.kind.block {
		return v.TargetPath
	}

	return filepath.Join(v.TargetPath, "data")
}

// write makes data durable, as a workload would.
func (v *volume) write() error {
	data := make([]byte, payload)
	_, _ = rand.Read(data)

	file, err := os.OpenFile(v.dataPath(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}

	_, err = file.WriteAt(data, 0)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		v.data = data
	}

	return err
}

func (v *volume) holds() error {
	if v.kind.direct || v.data == nil {
		return nil
	}

	file, err := os.Open(v.dataPath())
	if err != nil {
		return fmt.Errorf("%w: read the data of %s: %w", errWrong, v.name, err)
	}
	defer file.Close()

	data := make([]byte, payload)
	if _, err := file.ReadAt(data, 0); err != nil || !bytes.Equal(data, v.data) {
		return fmt.Errorf("%w: %s does not have the data that was written and synced (%w)", errWrong, v.name, err)
	}

	return nil
}

// verify compares what the driver lists and what is published with what was
// acknowledged. pending says that the outcome of a call is not known.
func (s *site) verify(pending bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()

	listed := map[string]*csi.ListVolumesResponse_Entry{}

	for entry, err := range s.Volumes(ctx, 0) {
		if err != nil {
			return fmt.Errorf("list the volumes: %w", err)
		}

		listed[entry.GetVolume().GetVolumeId()] = entry
	}

	for _, v := range s.model.volumes {
		if err := s.verifyVolume(ctx, v, listed, pending); err != nil {
			return err
		}

		delete(listed, v.VolumeID)
	}

	if len(listed) > 0 && !pending {
		return fmt.Errorf("%w: it lists volumes that were deleted: %v", errWrong, listed)
	}

	if err := s.verifySnapshots(ctx, pending); err != nil || pending {
		return err
	}

	return s.verifyInventory()
}

func (s *site) verifyVolume(ctx context.Context, v *volume, listed map[string]*csi.ListVolumesResponse_Entry, pending bool) error {
	entry, ok := listed[v.VolumeID]

	switch {
	case v.created && !v.kind.inline && !ok && !pending:
		return fmt.Errorf("%w: the acknowledged volume %s is lost", errWrong, v.name)
	case ok && !v.created && !pending:
		return fmt.Errorf("%w: %s was deleted and is listed", errWrong, v.name)
	case ok && entry.GetVolume().GetCapacityBytes() < v.capacity:
		return fmt.Errorf("%w: %s has %d bytes, %d were acknowledged", errWrong, v.name, entry.GetVolume().GetCapacityBytes(), v.capacity)
	case ok && !pending && slices.Contains(entry.GetStatus().GetPublishedNodeIds(), nodeID) != v.attached:
		return fmt.Errorf("%w: the attachment of %s is not as acknowledged", errWrong, v.name)
	case !v.published || pending && v.name != bystander:
		return nil
	}

	if err := v.holds(); err != nil {
		return err
	}

	if _, err := s.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{
		VolumeId: v.VolumeID, VolumePath: v.TargetPath,
	}); err != nil && !v.kind.direct {
		return fmt.Errorf("%w: statistics of %s: %w", errWrong, v.name, err)
	}

	return nil
}

func (s *site) verifySnapshots(ctx context.Context, pending bool) error {
	listed := map[string]bool{}

	for entry, err := range s.Snapshots(ctx, "", 0) {
		if err != nil {
			return fmt.Errorf("list the snapshots: %w", err)
		}

		listed[entry.GetSnapshot().GetSnapshotId()] = true
	}

	if pending {
		return nil
	}

	for _, each := range s.model.snapshots {
		if listed[each.id] != each.created {
			return fmt.Errorf("%w: snapshot %s: acknowledged as created: %t, listed: %t", errWrong, each.name, each.created, listed[each.id])
		}

		delete(listed, each.id)
	}

	if len(listed) > 0 {
		return fmt.Errorf("%w: it lists snapshots that were deleted: %v", errWrong, listed)
	}

	return nil
}

const (
	oneInline = "an inline volume"
	oneEntry  = "an entry"
)

// inventory is what the driver has made. Its lists are sorted.
type inventory struct {
	Mounts, Images, Directories, Snapshots, Inline, Scratch, Targets, Direct, Devices []string
}

// difference has a line for each list that differs.
func (i *inventory) difference(found *inventory) string {
	var text strings.Builder

	ours, theirs := reflect.ValueOf(i).Elem(), reflect.ValueOf(found).Elem()
	for n := range ours.NumField() {
		expected, actual := ours.Field(n).Interface(), theirs.Field(n).Interface()
		if !assert.ObjectsAreEqual(expected, actual) {
			fmt.Fprintf(&text, "%s: expected %v, found %v\n", ours.Type().Field(n).Name, expected, actual)
		}
	}

	return text.String()
}

func (s *site) expected() *inventory {
	i := &inventory{}

	for _, v := range s.model.volumes {
		if !v.created {
			continue
		}

		switch {
		case v.kind.inline:
			i.Inline = append(i.Inline, oneInline)
		case v.kind.image():
			i.Images = append(i.Images, v.VolumeID+".img")
		default:
			i.Directories = append(i.Directories, v.VolumeID)
		}

		if v.published {
			i.Mounts = append(i.Mounts, v.TargetPath)
		}

		if v.published && v.kind.direct {
			i.Direct = append(i.Direct, oneEntry)
		}

		if v.published {
			i.Targets = append(i.Targets, v.TargetPath)
		}

		if v.staged && !v.kind.block && !v.kind.direct && !v.kind.inline {
			i.Mounts = append(i.Mounts, v.StagingPath)
		}

		switch {
		case v.staged && v.kind.image() && v.kind.inline:
			i.Devices = append(i.Devices, oneInline)
		case v.staged && v.kind.image():
			i.Devices = append(i.Devices, v.VolumeID+".img")
		}
	}

	for _, each := range s.model.snapshots {
		if each.created {
			i.Snapshots = append(i.Snapshots, each.id)
		}
	}

	return i.sorted()
}

func (i *inventory) sorted() *inventory {
	for _, list := range []*[]string{&i.Mounts, &i.Images, &i.Directories, &i.Snapshots, &i.Inline, &i.Scratch, &i.Targets, &i.Direct, &i.Devices} {
		slices.Sort(*list)
	}

	return i
}

func (s *site) found() (*inventory, error) {
	i := &inventory{}

	found, err := mountinfo.GetMounts(func(m *mountinfo.Info) (bool, bool) { return !beneath(m.Mountpoint, s.kubelet()), false })
	if err != nil {
		return nil, err
	}

	for _, each := range found {
		i.Mounts = append(i.Mounts, each.Mountpoint)
	}

	for directory, list := range map[string]*[]string{
		"images": &i.Images, "directories": &i.Directories, "snapshots": &i.Snapshots, "scratch": &i.Scratch,
		"ephemeral/images": &i.Inline, "ephemeral/directories": &i.Inline, "ephemeral/scratch": &i.Scratch,
		"ephemeral/snapshots": &i.Snapshots,
	} {
		*list = append(*list, names(filepath.Join(s.pool, directory))...)
	}

	// The driver has names of its own for these.
	for n := range i.Inline {
		i.Inline[n] = oneInline
	}

	for n := range i.Snapshots {
		i.Snapshots[n] = strings.TrimSuffix(i.Snapshots[n], ".img")
	}

	for _, pod := range names(filepath.Join(s.kubelet(), "pods")) {
		for _, target := range names(filepath.Join(s.kubelet(), "pods", pod)) {
			i.Targets = append(i.Targets, filepath.Join(s.kubelet(), "pods", pod, target))
		}
	}

	for range names(s.direct()) {
		i.Direct = append(i.Direct, oneEntry)
	}

	devices, err := s.attachments()
	for _, device := range devices {
		name := filepath.Base(device.BackingPath)
		if beneath(device.BackingPath, filepath.Join(s.pool, "ephemeral")) {
			name = oneInline
		}

		i.Devices = append(i.Devices, name)
	}

	i.sorted()
	// A direct volume's target is mounted over where it could not be read.
	i.Mounts = slices.Compact(i.Mounts)

	return i, err
}

func names(directory string) []string {
	entries, _ := os.ReadDir(directory) // most need not exist

	list := make([]string, 0, len(entries))
	for _, entry := range entries {
		list = append(list, entry.Name())
	}

	return list
}

func (s *site) attachments() ([]loop.Attachment, error) {
	list, err := loop.NewLoops(loop.LoopsOptions{}).Attachments()

	return slices.DeleteFunc(list, func(each loop.Attachment) bool { return !beneath(each.BackingPath, s.pool) }), err
}

func (s *site) devices(t *testing.T) []loop.Attachment {
	t.Helper()

	list, err := s.attachments()
	require.NoError(t, err)

	return list
}

// verifyInventory awaits that there is exactly what was acknowledged: removals
// that failed are repeated in the background.
func (s *site) verifyInventory() error {
	const (
		enough = 20 * time.Second
		pause  = 20 * time.Millisecond
	)

	for until := time.Now().Add(enough); ; time.Sleep(pause) {
		found, err := s.found()
		if err != nil {
			return err
		}

		difference := s.expected().difference(found)
		if difference == "" {
			return nil
		}

		if time.Now().After(until) {
			return fmt.Errorf("%w: there is not what was acknowledged after %s:\n%s", errWrong, enough, difference)
		}
	}
}

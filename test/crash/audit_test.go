package crash_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
)

// checkAcknowledged is made right after a start: nothing that was acknowledged
// is lost, nothing that was deleted is back, and data is where it was.
func (s *scenario) checkAcknowledged(p *process) {
	s.t.Helper()

	listed := map[string]*csi.ListVolumesResponse_Entry{}

	for entry, err := range p.Volumes(s.t.Context(), 0) {
		require.NoError(s.t, err)
		require.NotContains(s.t, listed, entry.GetVolume().GetVolumeId(), "listed twice")
		listed[entry.GetVolume().GetVolumeId()] = entry
	}

	creating := 0

	for _, v := range s.volumes() {
		if v.phase == absent {
			if v.pending != nil {
				creating++
			}

			continue
		}

		s.checkListed(v, listed[v.claim.VolumeID])
		delete(listed, v.claim.VolumeID)

		for place := range v.published {
			if v.pending == nil || v.pending.name != "unpublish" || v.pending.at != place {
				require.NoError(s.t, v.holds(place), "%s %s", v.kind.name, v.claim.VolumeID)
				s.reads++
			}
		}
	}

	for _, id := range s.graves() {
		require.NotContains(s.t, listed, id, "a deleted volume is back")
	}

	require.LessOrEqual(s.t, len(listed), creating, "volumes that were not requested: %v", listed)
	s.checkSnapshots(p)
}

func (s *scenario) checkListed(v *volume, entry *csi.ListVolumesResponse_Entry) {
	s.t.Helper()

	pending := ""
	if v.pending != nil {
		pending = v.pending.name
	}

	if entry == nil {
		require.Equal(s.t, "delete", pending, "an acknowledged volume is lost: %s %s", v.kind.name, v.claim.VolumeID)

		return
	}

	s.kept++

	require.GreaterOrEqual(s.t, entry.GetVolume().GetCapacityBytes(), v.capacity, "want: an expanded volume does not shrink")

	if pending != "expand" {
		require.Equal(s.t, v.capacity, entry.GetVolume().GetCapacityBytes(), "want: the volume has its size")
	}

	if pending != "attach" && pending != "detach" {
		require.Equal(s.t, v.phase >= attached, slices.Contains(entry.GetStatus().GetPublishedNodeIds(), nodeID),
			"attachment of %s", v.claim.VolumeID)
	}
}

// audit compares all that there is with what there has to be, exactly. No
// outcome may be unknown.
func (s *scenario) audit() {
	s.t.Helper()
	require.Equal(s.t, s.expected(), s.site.inventory(s.t))

	s.audits++
}

// expected returns what there has to be.
func (s *scenario) expected() *inventory {
	s.t.Helper()

	want := newInventory()

	for _, v := range s.volumes() {
		require.Nil(s.t, v.pending, "want: no call for the volume is pending")
		want.expect(v)
	}

	for _, w := range s.workers {
		for _, each := range w.snapshots {
			require.Nil(s.t, each.pending, "want: no call for the snapshot is pending")
			want.expectSnapshot(each)
		}
	}

	return want
}

// inventory is what the driver has made. Its lists are sorted.
type inventory struct {
	Mounts, Images, Directories, Snapshots, Scratch, Targets, Devices []string
}

func newInventory() *inventory { return &inventory{} }

func (i *inventory) equal(other *inventory) bool { return reflect.DeepEqual(i, other) }

func (i *inventory) expect(v *volume) {
	if v.phase == absent || v.phase == deleted {
		return
	}

	id := v.claim.VolumeID
	if v.kind.image() {
		insert(&i.Images, id+".img")
	} else {
		insert(&i.Directories, id)
	}

	for place := range v.published {
		insert(&i.Mounts, v.at(place).TargetPath)
		insert(&i.Targets, v.at(place).TargetPath)
	}

	if v.phase != staged {
		return
	}

	if !v.kind.block {
		insert(&i.Mounts, v.claim.StagingPath)
	}

	if v.kind.image() {
		insert(&i.Devices, id+".img rw")
	}

	// A device of its own is what makes a block publication read-only.
	if v.kind.block && v.published[readOnly] {
		insert(&i.Devices, id+".img ro")
	}
}

func insert(list *[]string, text string) {
	at, _ := slices.BinarySearch(*list, text)
	*list = slices.Insert(*list, at, text)
}

func (s *site) inventory(t *testing.T) *inventory {
	t.Helper()

	found := newInventory()

	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(s.root))
	require.NoError(t, err)

	for _, each := range mounts {
		insert(&found.Mounts, each.Mountpoint)
	}

	for room, list := range map[string]*[]string{
		"images": &found.Images, "directories": &found.Directories, "snapshots": &found.Snapshots, "scratch": &found.Scratch,
	} {
		for _, entry := range entries(t, filepath.Join(s.pool(), room)) {
			insert(list, entry)
		}
	}

	pods := filepath.Join(s.kubelet(), "pods")
	for _, pod := range entries(t, pods) {
		for _, place := range entries(t, filepath.Join(pods, pod)) {
			insert(&found.Targets, filepath.Join(pods, pod, place))
		}
	}

	for _, device := range s.devices(t) {
		mode := " rw"
		if device.ReadOnly {
			mode = " ro"
		}

		insert(&found.Devices, filepath.Base(device.BackingPath)+mode)
	}

	return found
}

func entries(t *testing.T, directory string) []string {
	t.Helper()

	list, err := os.ReadDir(directory)
	if !errors.Is(err, os.ErrNotExist) {
		require.NoError(t, err)
	}

	names := make([]string, 0, len(list))
	for _, entry := range list {
		names = append(names, entry.Name())
	}

	return names
}

// devices are the loop devices of this pool's images.
func (s *site) devices(t *testing.T) []loop.Attachment {
	t.Helper()

	list, err := loop.NewLoops(loop.LoopsOptions{}).Attachments()
	require.NoError(t, err)

	return slices.DeleteFunc(list, func(each loop.Attachment) bool { return !strings.HasPrefix(each.BackingPath, s.pool()+"/") })
}

// sweep takes away what a failed test has left on the machine.
func (s *site) sweep(t *testing.T) {
	t.Helper()

	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(s.root))
	require.NoError(t, err)

	for _, each := range slices.Backward(mounts) {
		thaw(each.Mountpoint)

		if err := unix.Unmount(each.Mountpoint, unix.MNT_DETACH); err != nil {
			t.Logf("unmount %s: %v", each.Mountpoint, err)
		}
	}

	loops := loop.NewLoops(loop.LoopsOptions{})

	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()

	for _, device := range s.devices(t) {
		if err := loops.Detach(ctx, device.Number); err != nil {
			t.Logf("detach %s: %v", device.Path, err)
		}
	}
}

// thaw is for what was killed in the middle of a freeze: unmounted as it is, the
// filesystem would stay, without a path to it.
func thaw(path string) {
	root, err := os.Open(path)
	if err != nil {
		return
	}
	defer root.Close()

	_ = filesystem.Thaw(root) // most are not frozen
}

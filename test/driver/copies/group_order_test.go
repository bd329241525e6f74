package copies_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

const (
	// groupsVariable is the environment variable with the number of groups to take.
	groupsVariable = "TOUCHSTONE_GROUPS"
	// someGroups is how many are taken without it.
	someGroups = 8
	// page is what is written at once.
	page = 4096
	// slowBytes is the size of the part of a volume that is fragmented and dirty.
	slowBytes = 32 * harness.MiB
	// dirtyPages is how many pages are dirty when a group is asked for.
	dirtyPages = 512
)

func groupsToTake(t *testing.T) int {
	t.Helper()

	given := os.Getenv(groupsVariable)
	if given == "" {
		return someGroups
	}

	count, err := strconv.Atoi(given)
	require.NoError(t, err, groupsVariable)

	return count
}

// alternation writes the same number to one device and then to the other, each durably, over and over
// again.
type alternation struct {
	written atomic.Uint64
	stop    chan struct{}
	ended   sync.WaitGroup
}

func alternate(t *testing.T, first, second string) *alternation {
	t.Helper()

	a := &alternation{stop: make(chan struct{})}
	devices := []*os.File{openDevice(t, first, unix.O_DSYNC), openDevice(t, second, unix.O_DSYNC)}

	a.ended.Go(func() {
		block := alignedPage()

		for number := uint64(1); ; number++ {
			select {
			case <-a.stop:
				return
			default:
			}

			binary.LittleEndian.PutUint64(block, number)

			for _, device := range devices {
				if _, err := device.WriteAt(block, 0); err != nil {
					t.Error(err)

					return
				}
			}

			a.written.Store(number)
		}
	})
	t.Cleanup(a.end)

	return a
}

func (a *alternation) end() {
	if a.stop != nil {
		close(a.stop)
		a.ended.Wait()
	}

	a.stop = nil
}

// beyond waits until a number has been written, and returns the last one.
func (a *alternation) beyond(t *testing.T, number uint64) uint64 {
	t.Helper()
	require.Eventually(t, func() bool { return a.written.Load() > number }, time.Minute, time.Millisecond, "want: the volume is written")

	return a.written.Load()
}

// openDevice opens a device for direct writes. It is closed with the test.
func openDevice(t *testing.T, path string, flags int) *os.File {
	t.Helper()

	device, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT|flags, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = device.Close() })

	return device
}

// alignedPage returns a page in memory that direct writes accept.
func alignedPage() []byte {
	buffer := make([]byte, 2*page)
	skip := page - int(uintptr(unsafe.Pointer(&buffer[0]))%page)

	return buffer[skip : skip+page]
}

// dirty writes pages in random order without waiting for the disk: they are extents of their own.
func dirty(device *os.File, pages int) error {
	block := alignedPage()

	for range pages {
		binary.LittleEndian.PutUint64(block, rand.Uint64())

		if _, err := device.WriteAt(block, rand.Int64N(slowBytes/page)*page); err != nil {
			return err
		}
	}

	return nil
}

// numberIn returns what is in the snapshot of a volume.
func numberIn(t *testing.T, d *harness.Driver, group *csi.VolumeGroupSnapshot, volumeID string) uint64 {
	t.Helper()

	at := slices.IndexFunc(group.GetSnapshots(), func(s *csi.Snapshot) bool { return s.GetSourceVolumeId() == volumeID })
	require.GreaterOrEqual(t, at, 0, "a snapshot of volume %s", volumeID)

	image, err := os.Open(filepath.Join(d.Pool(), "snapshots", group.GetSnapshots()[at].GetSnapshotId()+".img"))
	require.NoError(t, err)

	defer image.Close()

	block := make([]byte, 8)
	_, err = image.ReadAt(block, 0)
	require.NoError(t, err)

	return binary.LittleEndian.Uint64(block)
}

// rawMembers returns that many raw block volumes in use, ordered by id as groups are.
func rawMembers(t *testing.T, d *harness.Driver, count int, parameters map[string]string) []*csiclient.Publication {
	t.Helper()

	var claims []*csiclient.Publication

	for i := range count {
		claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
			Name: fmt.Sprint(i, parameters), Parameters: parameters, VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
		})
		harness.BringUp(t, d, claim)
		t.Cleanup(func() { harness.TakeDown(t, d, claim) })

		claims = append(claims, claim)
	}

	slices.SortFunc(claims, func(a, b *csiclient.Publication) int { return strings.Compare(a.VolumeID, b.VolumeID) })

	return claims
}

// directIO returns what sysfs has of the loop device that is published at a path.
func directIO(t *testing.T, path string) string {
	t.Helper()

	var found unix.Stat_t

	require.NoError(t, unix.Stat(path, &found))

	text, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/loop/dio", unix.Major(found.Rdev), unix.Minor(found.Rdev)))
	require.NoError(t, err)

	return strings.TrimSpace(string(text))
}

// TestAGroupOfRawBlockIsInTheOrderOfWrites writes alternately to the first and the last member of a
// group, with a member between them that takes long to copy: no group has the later write without the
// earlier one.
func TestAGroupOfRawBlockIsInTheOrderOfWrites(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, mode := range map[string]struct {
		parameters map[string]string
		directIO   string
	}{
		"direct":   {nil, "1"},
		"buffered": {map[string]string{"blockSize": "512"}, "0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, harness.PoolAt("default", testpool.Btrfs(t, 4*harness.GiB)))
			members := rawMembers(t, d, 3, mode.parameters)
			require.Equal(t, mode.directIO, directIO(t, members[0].TargetPath), "the loop device uses direct I/O")

			require.Empty(t, takeGroups(t, d, members, nil), "groups with a later write and without an earlier one")
			conformance.Shows(t, "CreateVolumeGroupSnapshot", "raw block volumes are written", "in the order of the writes")
			harness.RequireEntries(t, d, map[string]int{"snapshots": 0, "scratch": 0})

			// Copied one after the other, the members are of different moments. This is reported only: how many
			// are depends on the machine.
			t.Logf("with consistency none, %d groups are out of order", len(takeGroups(t, d, members, map[string]string{"consistency": "none"})))
		})
	}
}

// takeGroups takes groups of three members while the outer ones are written alternately and the inner
// one in random order, and returns the numbers of the groups that are out of order.
func takeGroups(t *testing.T, d *harness.Driver, members []*csiclient.Publication, parameters map[string]string) (wrong []int) {
	t.Helper()

	slow := openDevice(t, members[1].TargetPath, 0)
	require.NoError(t, dirty(slow, 4*dirtyPages))

	writing := alternate(t, members[0].TargetPath, members[2].TargetPath)
	count, started, last := groupsToTake(t), time.Now(), uint64(0)

	for i := range count {
		var dirtying sync.WaitGroup

		dirtying.Go(func() {
			if err := dirty(slow, dirtyPages); err != nil {
				t.Error(err)
			}
		})

		last = writing.beyond(t, last)
		made, err := d.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{
			Name: fmt.Sprint("group ", i, parameters), Parameters: parameters,
			SourceVolumeIds: []string{members[0].VolumeID, members[1].VolumeID, members[2].VolumeID},
		})
		require.NoError(t, err)
		await.Return(t, dirtying.Wait, "the writes during the group snapshot to end")

		group := made.GetGroupSnapshot()
		first, second := numberIn(t, d, group, members[0].VolumeID), numberIn(t, d, group, members[2].VolumeID)
		require.GreaterOrEqual(t, min(first, second), last, "what was durable when the group was asked for is in it")

		if first != second && first != second+1 {
			t.Logf("group %d has %d of the volume that is written first, and %d of the other one", i, first, second)

			wrong = append(wrong, i)
		}

		require.NoError(t, deleteGroup(t.Context(), d, group.GetGroupSnapshotId(), membersOf(group)))
	}

	writing.end()
	t.Logf("%d of %d groups out of order, %d numbers written, %s for each group",
		len(wrong), count, writing.written.Load(), (time.Since(started) / time.Duration(count)).Round(time.Millisecond))

	return wrong
}

// TestAGroupOfMountedAndRawBlock has members of all kinds that are in use: filesystems are frozen and
// raw block volumes are not, and the group is in the order of the writes to all of them.
func TestAGroupOfMountedAndRawBlock(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, harness.PoolAt("default", testpool.Btrfs(t, 4*harness.GiB)))
	raw := rawMembers(t, d, 1, nil)[0]
	device := openDevice(t, raw.TargetPath, unix.O_DSYNC)

	request := harness.MountRequest("ext4", 64*harness.MiB)
	request.Name = "mounted"
	mounted := harness.NewVolume(t, d, request)
	harness.BringUp(t, d, mounted)
	t.Cleanup(func() { harness.TakeDown(t, d, mounted) })

	var (
		stop    = make(chan struct{})
		written atomic.Uint64
		writing sync.WaitGroup
	)

	writing.Go(func() {
		block := alignedPage()

		for number := uint64(0); ; number++ {
			select {
			case <-stop:
				return
			default:
			}

			binary.LittleEndian.PutUint64(block, number+1)

			_, err := device.WriteAt(block, 0)
			if err == nil {
				err = durably((&diary{}).entry(mounted.TargetPath, int64(number)), fmt.Sprint("entry ", number))
			}

			if err != nil {
				t.Error(err)

				return
			}

			written.Store(number + 1)
		}
	})

	end := sync.OnceFunc(func() { close(stop); writing.Wait() })
	t.Cleanup(end)

	var groups []*csi.VolumeGroupSnapshot

	for i := range 5 {
		require.Eventually(t, func() bool { return written.Load() > uint64(10*i) }, time.Minute, time.Millisecond, "want: the volume is written")

		made, err := d.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{
			Name: strconv.Itoa(i), SourceVolumeIds: []string{raw.VolumeID, mounted.VolumeID},
		})
		require.NoError(t, err)

		groups = append(groups, made.GetGroupSnapshot())
	}

	end()

	for i, group := range groups {
		at := slices.IndexFunc(group.GetSnapshots(), func(s *csi.Snapshot) bool { return s.GetSourceVolumeId() == mounted.VolumeID })
		restored := copyOf(t, d, request, fmt.Sprint("restored ", i), harness.FromSnapshot(group.GetSnapshots()[at].GetSnapshotId()), nil)
		harness.BringUp(t, d, restored)

		entries := uint64((&diary{}).entries(t, restored.TargetPath))
		require.Contains(t, []uint64{entries, entries + 1}, numberIn(t, d, group, raw.VolumeID), "what was written first is in the group, too")
		harness.TakeDown(t, d, restored)
	}

	conformance.Shows(t, "CreateVolumeGroupSnapshot", "a filesystem and a raw block volume are written", "in the order of the writes")
}

// TestAGroupOfRawBlockIsRefused: pools that cannot copy several images at once refuse a group of
// images in use that cannot be frozen, and name the reason.
func TestAGroupOfRawBlockIsRefused(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, directory := range map[string]string{
		"xfs": testpool.Reflink(t, harness.GiB), "ext4": testpool.Plain(t, harness.GiB),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, harness.PoolAt("default", directory))
			members := rawMembers(t, d, 2, nil)
			ids := []string{members[0].VolumeID, members[1].VolumeID}

			_, err := d.CreateVolumeGroupSnapshot(groupOfRawBlock(t, ids), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: ids})
			harness.RequireCode(t, err, codes.FailedPrecondition, members[0].VolumeID, "btrfs", "consistency")
			harness.RequireEntries(t, d, map[string]int{"snapshots": 0, "scratch": 0})
		})
	}

	// Two btrfs have no transaction in common.
	d := harness.Start(t, harness.PoolAt("default", testpool.Btrfs(t, harness.GiB)), harness.PoolAt("other", testpool.Btrfs(t, harness.GiB)))

	var ids []string

	for _, pool := range []string{"default", "other"} {
		ids = append(ids, rawMembers(t, d, 1, map[string]string{"pool": pool})[0].VolumeID)
	}

	_, err := d.CreateVolumeGroupSnapshot(groupOfRawBlock(t, ids), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: ids})
	harness.RequireCode(t, err, codes.FailedPrecondition, "pool", "consistency")
	harness.RequireEntries(t, d, map[string]int{"snapshots": 0, "scratch": 0})
}

// groupOfRawBlock declares that the volumes of a group are raw block volumes in use whose writes cannot be
// kept in order.
func groupOfRawBlock(t *testing.T, ids []string) context.Context {
	t.Helper()

	return conformance.Exercise(t.Context(), conformance.Where("raw block volumes in use that no pool copies together",
		func(r *csi.CreateVolumeGroupSnapshotRequest) bool { return slices.Equal(r.GetSourceVolumeIds(), ids) }))
}

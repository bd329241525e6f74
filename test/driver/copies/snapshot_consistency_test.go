package copies_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// diary is a workload that writes file after file, and each only once the one
// before is on the disk.
type diary struct {
	written atomic.Int64
	stop    chan struct{}
	ended   sync.WaitGroup
}

func (d *diary) entry(place string, number int64) string {
	return filepath.Join(place, fmt.Sprintf("%06d", number))
}

// keep begins to write, the same data to each path.
func (d *diary) keep(t *testing.T, places ...string) {
	t.Helper()

	d.stop = make(chan struct{})
	d.ended.Go(func() {
		for number := int64(0); ; number++ {
			select {
			case <-d.stop:
				return
			default:
			}

			for _, place := range places {
				if err := durably(d.entry(place, number), fmt.Sprint("entry ", number)); err != nil {
					t.Error(err)

					return
				}
			}

			d.written.Store(number + 1)
		}
	})
	t.Cleanup(d.close)
	require.Eventually(t, func() bool { return d.written.Load() > 3 }, time.Minute, time.Millisecond, "want: the volume is written")
}

func (d *diary) close() {
	if d.stop != nil {
		close(d.stop)
		d.ended.Wait()
	}

	d.stop = nil
}

func durably(path, text string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()

	if _, err := file.WriteString(text); err != nil {
		return err
	}

	return file.Sync()
}

// entries counts what is in the diary, without a gap and each whole.
func (d *diary) entries(t *testing.T, place string) int64 {
	t.Helper()

	for number := int64(0); ; number++ {
		text, err := os.ReadFile(d.entry(place, number))
		if os.IsNotExist(err) {
			return number
		}

		require.NoError(t, err)

		// The last may have been begun.
		if string(text) != fmt.Sprint("entry ", number) {
			require.NoFileExists(t, d.entry(place, number+1))

			return number
		}
	}
}

// TestSnapshotsDuringWritesAreConsistent: snapshots, a group and a clone of volumes are made while
// a workload writes to them: each has all that was on the disk when it was asked for, and the
// members of a group differ by what was being written.
func TestSnapshotsDuringWritesAreConsistent(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, reflinking(t))

			var (
				claims   []*csiclient.Publication
				writing  diary
				ids      []string
				restores []*csiclient.Publication
				least    []int64
			)

			for i := range 2 {
				request := harness.MountRequest(fsType, 300*harness.MiB)
				request.Name = strconv.Itoa(i)
				claim := harness.NewVolume(t, d, request)
				harness.BringUp(t, d, claim)
				claims, ids = append(claims, claim), append(ids, claim.VolumeID)
			}

			writing.keep(t, claims[0].TargetPath, claims[1].TargetPath)

			restored := func(name string, source *csi.VolumeContentSource, written int64) {
				t.Helper()

				restores = append(restores, copyOf(t, d, harness.MountRequest(fsType, 300*harness.MiB), name, source, nil))
				least = append(least, written)
			}

			for i := range 3 {
				written := writing.written.Load()
				made, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{
					Name: strconv.Itoa(i), SourceVolumeId: ids[i%2],
				})
				require.NoError(t, err)
				restored(fmt.Sprint("snapshot ", i), harness.FromSnapshot(made.GetSnapshot().GetSnapshotId()), written)
			}

			written := writing.written.Load()
			restored("clone", harness.FromVolume(ids[0]), written)

			written = writing.written.Load()
			group, err := d.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: ids})
			require.NoError(t, err)

			// The first is written before the second, entry by entry.
			for _, id := range ids {
				for _, member := range group.GetGroupSnapshot().GetSnapshots() {
					if member.GetSourceVolumeId() == id {
						restored("member of "+id, harness.FromSnapshot(member.GetSnapshotId()), written)
					}
				}
			}

			writing.close()

			var found []int64

			for i, claim := range restores {
				harness.BringUp(t, d, claim)
				found = append(found, writing.entries(t, claim.TargetPath))
				require.GreaterOrEqual(t, found[i], least[i], "want: no acknowledged write is missing")
				require.LessOrEqual(t, found[i], writing.written.Load()+1, "want: no later write is in the snapshot")
			}

			first, second := found[len(found)-2], found[len(found)-1]
			require.Contains(t, []int64{second, second + 1}, first, "what was written first is in the group, too")
		})
	}
}

package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"iter"
	"math/rand"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/rpccode"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

const mib = 1 << 20

func TestMain(m *testing.M) {
	namespace.Enter()
	goleak.VerifyTestMain(m)
}

// TestBackup follows README.md: after it the volume and its snapshots
// are gone, and what is left are files.
func TestBackup(t *testing.T) {
	namespace.NeedRoot(t)

	for name, options := range map[string]func() []harness.Option{
		"reflink": func() []harness.Option {
			pool := testpool.Reflink(t, 2<<30)

			return []harness.Option{func(c *driver.Config) { c.Pools = map[string]string{"default": pool} }}
		},
		"plain": func() []harness.Option { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{t: t, driver: harness.Start(t, options()...), files: t.TempDir()}
			volume := w.volume("data", 64*mib)

			w.change(volume, func(device *os.File) {
				w.write(device, 1*mib, 10*mib)
				w.write(device, 40*mib, 1*mib)
			})

			first, want := w.snapshot(volume, "first")
			w.backup("full", first, w.file("full"))
			require.Equal(t, int64(11), w.size("full")/mib, "want: the full backup has the written blocks only")

			w.change(volume, func(device *os.File) {
				w.write(device, 5*mib, 1*mib)
				w.write(device, 50*mib, 1*mib)
				require.NoError(t, unix.Fallocate(int(device.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 2*mib, 1*mib))
			})
			w.expand(volume, 80*mib)
			w.change(volume, func(device *os.File) { w.write(device, 79*mib, 1*mib) })

			second, wantSecond := w.snapshot(volume, "second")
			w.backup("incremental", first, second, w.file("incremental"))
			require.Equal(t, int64(4), w.size("incremental")/mib, "want: the incremental backup has the changed blocks only")
			require.NotEqual(t, want, wantSecond, "want: the volume has changed between the snapshots")

			w.remove(volume, first, second)
			require.Contains(t, w.backup("restore", "one", w.file("full")), want)
			require.Contains(t, w.backup("restore", "two", w.file("full"), w.file("incremental")), wantSecond)
			require.Equal(t, wantSecond, w.sum(filepath.Join(w.driver.Pool(), "images", w.find("two")+".img")))
			// As after an interruption: what is there already is not what comes back.
			require.Contains(t, w.backup("restore", "one", w.file("full")), want)
			w.refusals()
		})
	}
}

// world is a driver and the backups of its volumes.
type world struct {
	t      *testing.T
	driver *harness.Driver
	files  string
	writes int64
}

func (w *world) file(name string) string { return filepath.Join(w.files, name) }

func (w *world) size(name string) int64 {
	info, err := os.Stat(w.file(name))
	require.NoError(w.t, err)

	return info.Size()
}

// run is the program.
func (w *world) run(args ...string) (string, error) {
	var out bytes.Buffer

	flags := []string{"-endpoint", w.driver.Config.Endpoint, "-dir", w.driver.Config.KubeletDir}
	err := run(w.t.Context(), append(flags, args...), &out)

	return out.String(), err
}

func (w *world) backup(args ...string) string {
	out, err := w.run(args...)
	require.NoError(w.t, err)

	// Nothing of it is left on the node.
	left, err := filepath.Glob(filepath.Join(w.driver.Config.KubeletDir, "backup-*"))
	require.NoError(w.t, err)
	require.Empty(w.t, left, "want: the backup leaves no directory of its own")

	return out
}

func (w *world) volume(name string, size int64) *csiclient.Publication {
	capability := csiclient.BlockCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)
	made, err := w.driver.CreateVolume(w.t.Context(), &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapabilities: []*csi.VolumeCapability{capability},
	})
	require.NoError(w.t, err)

	claim := w.driver.Claim(w.t, made.GetVolume().GetVolumeId())
	claim.VolumeContext, claim.Capability = made.GetVolume().GetVolumeContext(), capability

	return claim
}

// change uses the volume, as a workload would.
func (w *world) change(claim *csiclient.Publication, with func(*os.File)) {
	ctx := w.t.Context()
	require.NoError(w.t, w.driver.Attach(ctx, claim))
	require.NoError(w.t, w.driver.Stage(ctx, claim))
	require.NoError(w.t, w.driver.Publish(ctx, claim))

	device, err := os.OpenFile(claim.TargetPath, os.O_RDWR, 0)
	require.NoError(w.t, err)
	with(device)
	require.NoError(w.t, device.Sync())
	require.NoError(w.t, device.Close())
	require.NoError(w.t, w.driver.Unpublish(ctx, claim))
	require.NoError(w.t, w.driver.Unstage(ctx, claim))
	require.NoError(w.t, w.driver.Detach(ctx, claim))
}

func (w *world) write(device *os.File, offset, length int64) {
	w.writes++

	data := make([]byte, length)
	rand.New(rand.NewSource(w.writes)).Read(data)

	_, err := device.WriteAt(data, offset)
	require.NoError(w.t, err)
}

func (w *world) expand(claim *csiclient.Publication, size int64) {
	_, err := w.driver.ControllerExpandVolume(w.t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: claim.VolumeID, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapability: claim.Capability,
	})
	require.NoError(w.t, err)
}

// snapshot returns the id and the SHA-256.
func (w *world) snapshot(claim *csiclient.Publication, name string) (id, sum string) {
	made, err := w.driver.CreateSnapshotAndWait(w.t.Context(), &csi.CreateSnapshotRequest{SourceVolumeId: claim.VolumeID, Name: name})
	require.NoError(w.t, err)

	id = made.GetSnapshot().GetSnapshotId()

	return id, w.sum(filepath.Join(w.driver.Pool(), "snapshots", id+".img"))
}

func (w *world) sum(path string) string {
	all, err := os.ReadFile(path)
	require.NoError(w.t, err)

	return fmt.Sprintf("%x", sha256.Sum256(all))
}

// find is the id of the volume that was restored with that name.
func (w *world) find(name string) string {
	made := w.volume(name, 80*mib)

	return made.VolumeID
}

func (w *world) remove(claim *csiclient.Publication, snapshots ...string) {
	for _, id := range snapshots {
		_, err := w.driver.DeleteSnapshot(w.t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: id})
		require.NoError(w.t, err)
	}

	_, err := w.driver.DeleteVolume(w.t.Context(), &csi.DeleteVolumeRequest{VolumeId: claim.VolumeID})
	require.NoError(w.t, err)
	// The volumes that the backups were read from are gone, too.
	for entry, err := range w.driver.Volumes(w.t.Context(), 0) {
		require.NoError(w.t, err)
		require.Fail(w.t, "a volume is left", "%v", entry)
	}
}

// refusals are of backups from which no volume can be made.
func (w *world) refusals() {
	for _, args := range [][]string{nil, {"full"}, {"full", "a"}, {"restore", "name"}, {"unheard", "of", "it"}} {
		_, err := w.run(args...)
		require.ErrorIs(w.t, err, errUsage)
	}

	for _, files := range [][]string{{"incremental"}, {"incremental", "full"}, {"full", "full"}} {
		for i := range files {
			files[i] = w.file(files[i])
		}

		_, err := w.run(append([]string{"restore", "refused"}, files...)...)
		require.ErrorIs(w.t, err, errChain)
	}

	whole, err := os.ReadFile(w.file("full"))
	require.NoError(w.t, err)

	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2]++

	for _, damaged := range [][]byte{nil, []byte("{}\n"), whole[:10], whole[:len(whole)/2], whole[:len(whole)-1], append(whole, 0), flipped} {
		require.NoError(w.t, os.WriteFile(w.file("damaged"), damaged, 0o600))
		_, err := w.run("restore", "refused", w.file("damaged"))
		require.ErrorIs(w.t, err, errDamaged)
	}

	_, err = w.run("full", "0198c0de-0000-7000-8000-000000000000", w.file("none"))
	rpccode.Require(w.t, err, codes.NotFound)
	require.NoFileExists(w.t, w.file("none"))
}

// TestInterruptedStream goes on behind what was received.
func TestInterruptedStream(t *testing.T) {
	d := harness.Start(t)
	tool := &tool{client: d.Client, out: io.Discard}
	asked := []int64{}
	end := error(nil)

	received := func() (offsets []int64, err error) {
		for block, err := range tool.ranges(t.Context(), func(from int64) iter.Seq2[csiclient.BlockMetadata, error] {
			asked = append(asked, from)

			return func(yield func(csiclient.BlockMetadata, error) bool) {
				if !yield(&csi.GetMetadataAllocatedResponse{BlockMetadata: []*csi.BlockMetadata{
					{ByteOffset: from + 10, SizeBytes: 10}, {ByteOffset: from + 30, SizeBytes: 10},
				}}, nil) {
					return
				}

				switch {
				case len(asked) < 3:
					yield(nil, status.Error(codes.Unavailable, "restarting"))
				case end != nil:
					yield(nil, end)
				}
			}
		}) {
			if err != nil {
				return offsets, err
			}

			offsets = append(offsets, block.GetByteOffset())
		}

		return offsets, nil
	}

	offsets, err := received()
	require.NoError(t, err)
	require.Equal(t, []int64{0, 40, 80}, asked)
	require.Equal(t, []int64{10, 30, 50, 70, 90, 110}, offsets)

	asked, end = nil, status.Error(codes.Aborted, "another reason")
	_, err = received()
	require.ErrorIs(t, err, end)
}

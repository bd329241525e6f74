package staging_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// mkfsOptions has each option that a user may give to mkfs. The first ones of each filesystem are
// tried always, all of them with TOUCHSTONE_MKFS_OPTIONS=all.
var mkfsOptions = map[string]struct {
	always int
	sets   []string
}{
	"ext4": {always: 4, sets: []string{
		"-O ^resize_inode,^flex_bg -m 0", "-g 8192 -i 1024 -I 512 -m 0", "-O quota", "-O ^extent,^64bit,^has_journal -m 0",
		"-L data -j -b 4096 -m 50", "-G 4", "-N 100", "-g 256", "-I 128", "-i 65536", "-T big", "-T floppy", "-T huge", "-T largefile",
		"-T largefile4", "-T news", "-T small", "-J size=8", "-J size=16,fast_commit_size=4 -O fast_commit",
		"-J fast_commit_size=1 -O fast_commit", "-E num_backup_sb=1 -O sparse_super2", "-E num_backup_sb=0", "-E orphan_file_size=64",
		"-E packed_meta_blocks=1", "-E resize=4G", "-E stride=16,stripe-width=64", "-E stripe_width=64,nodiscard", "-E root_owner=1:1",
		"-O 64bit", "-O ^64bit", "-O ^dir_index", "-O ^dir_nlink", "-O ea_inode", "-O ^ext_attr", "-O extent", "-O extents",
		"-O ^extra_isize", "-O ^filetype", "-O ^has_journal", "-O ^huge_file", "-O inline_data", "-O large_dir", "-O ^large_file",
		"-O ^metadata_csum", "-O metadata_csum_seed", "-O orphan_file", "-O project", "-O ^sparse_super,^resize_inode",
		"-O ^metadata_csum,uninit_bg",
	}},
	"xfs": {always: 2, sets: []string{
		"-b size=1024", "-d agcount=2 -m rmapbt=1", "-m crc=0", "-L data -s size=4096 -b size=4096", "-b size=8192", "-d agsize=160m",
		"-d concurrency=2", "-d cowextsize=16", "-d extszinherit=16", "-d su=64k,sw=2", "-d sunit=128,swidth=256", "-d noalign",
		"-i exchange=1", "-i maxpct=10", "-i nrext64=1", "-i perblock=4", "-i size=2048", "-i sparse=0", "-l concurrency=1",
		"-l lazy-count=1", "-l size=64m", "-l su=32k", "-l sunit=64", "-l version=2", "-m bigtime=0", "-m finobt=0", "-m inobtcount=0",
		"-m reflink=0", "-n ftype=1", "-n parent=1", "-n size=8k",
	}},
	"btrfs": {always: 1, sets: []string{
		"-M", "-d single -m single", "-L data --csum blake2", "--label data --checksum crc32c", "--csum sha256", "--csum xxhash",
		"--mixed -n 4096", "--nodesize=32k", "--data dup --metadata dup", "-O block-group-tree", "-O bgt", "-O ^extref",
		"--features ^skinny-metadata", "-O ^no-holes", "-O mixed-bg -n 4096", "-R free-space-tree", "--runtime-features quota",
		"-O squota", "-O fst",
	}},
}

func allMkfsOptions() bool { return os.Getenv("TOUCHSTONE_MKFS_OPTIONS") == "all" }

// TestAllMkfsOptionsAreTried fails for an option that is allowed and not in the table.
func TestAllMkfsOptionsAreTried(t *testing.T) {
	t.Parallel()

	for fsType, tried := range mkfsOptions {
		known := strings.FieldsFunc(strings.Join(tried.sets, " "), func(r rune) bool { return strings.ContainsRune(" ,=^", r) })

		_, list, _ := strings.Cut(filesystem.CheckOptions(fsType, []string{"--help"}).Error(), "allowed are ")
		for _, allowed := range strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(" ,=|[]^", r) }) {
			if strings.ToUpper(allowed) != allowed || allowed[0] == '-' {
				require.Contains(t, known, allowed, fsType)
			}
		}
	}
}

// TestVolumesGrowWithMkfsOptions takes a volume of each through its lifecycle: full, copied and
// grown. An option that mkfs or the kernel does not know leaves the volume as it was.
func TestVolumesGrowWithMkfsOptions(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for fsType, tried := range mkfsOptions {
		sets := tried.sets
		if !allMkfsOptions() {
			sets = sets[:tried.always]
		}

		for _, options := range sets {
			t.Run(fsType+" "+options, func(t *testing.T) {
				t.Parallel()

				d := harness.Start(t)
				request := harness.Formatted(fsType)
				request.Parameters = map[string]string{"mkfsOptions": options}
				request.CapacityRange = harness.RequiredBytes(harness.SizeFor(fsType))
				claim := harness.NewVolume(t, d, request)

				require.NoError(t, d.Attach(t.Context(), claim))

				if err := d.Stage(t.Context(), claim); err != nil {
					harness.RequireCode(t, err, codes.InvalidArgument, options)
					require.NotContains(t, strings.ToLower(err.Error()), "usage:")
					requireBlank(t, d, claim)
					t.Skipf("this kernel takes no filesystem with these options: %v", err)
				}

				growFull(t, d, claim)
			})
		}
	}
}

// growFull fills a staged volume, copies it into larger ones, and grows it unmounted and mounted.
func growFull(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
	t.Helper()

	fsType := claim.Capability.GetMount().GetFsType()
	size := harness.SizeFor(fsType)
	capabilities := []*csi.VolumeCapability{claim.Capability}

	require.NoError(t, d.Publish(t.Context(), claim))
	t.Cleanup(func() { harness.TakeDown(t, d, claim) })
	fillUp(t, claim.TargetPath, allMkfsOptions() || fsType == "ext4")
	harness.TakeDown(t, d, claim)
	harness.RequireSound(t, fsType, harness.ImageOf(d, claim.VolumeID))

	snapshot := harness.TakeSnapshot(t, d, claim.VolumeID, t.Name())
	for name, source := range map[string]*csi.VolumeContentSource{
		"-restored": harness.FromSnapshot(snapshot), "-cloned": harness.FromVolume(claim.VolumeID),
	} {
		made, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: t.Name() + name, VolumeCapabilities: capabilities, VolumeContentSource: source,
			CapacityRange: harness.RequiredBytes(2 * size), Parameters: map[string]string{"mkfsOptions": claim.VolumeContext["mkfsOptions"]},
		})
		if status.Code(err) == codes.OutOfRange {
			errtext.Require(t, err, "cannot grow so far")

			return // small groups have no space for more descriptors
		}

		require.NoError(t, err)

		larger := d.Claim(t, made.GetVolume().GetVolumeId())
		larger.VolumeContext, larger.Capability = made.GetVolume().GetVolumeContext(), claim.Capability
		requireGrown(t, d, larger, 2*size)
	}

	expand := func(bytes int64) {
		_, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: claim.VolumeID, CapacityRange: harness.RequiredBytes(bytes),
		})
		require.NoError(t, err)
	}

	expand(2*size + 4096)
	requireGrown(t, d, claim, 2*size)

	harness.BringUp(t, d, claim)
	expand(3 * size)

	_, err := d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: claim.VolumeID, VolumePath: claim.TargetPath})
	if fsType != "ext4" || status.Code(err) != codes.FailedPrecondition { // without CAP_SYS_RESOURCE
		require.NoError(t, err)
	}

	harness.TakeDown(t, d, claim)
	requireGrown(t, d, claim, 3*size)
}

// requireGrown brings a volume up, with the file that it has, takes it down, and requires a sound filesystem of
// that size, less a rest that is too short to be used.
func requireGrown(t *testing.T, d *harness.Driver, claim *csiclient.Publication, bytes int64) {
	t.Helper()
	harness.BringUp(t, d, claim)
	harness.RequireFile(t, filepath.Join(claim.TargetPath, "first"), "content")
	harness.TakeDown(t, d, claim)

	fs, err := filesystem.ByName(claim.Capability.GetMount().GetFsType(), nil)
	require.NoError(t, err)

	image, err := os.Open(harness.ImageOf(d, claim.VolumeID))
	require.NoError(t, err)

	defer image.Close()

	size, err := fs.SizeBytes(image)
	require.NoError(t, err)
	require.Greater(t, size, bytes-8*harness.MiB, "want: the filesystem has grown to its image")
	harness.RequireSound(t, fs.Name(), image.Name())
}

// fillUp writes files until the filesystem has no more space, or few of them: large ones, then small ones.
func fillUp(t *testing.T, directory string, full bool) {
	t.Helper()
	harness.WriteFile(t, filepath.Join(directory, "first"), "content")

	most := 10
	if full {
		most = 1000
	}

	for _, size := range []int{4 * harness.MiB, 4096} {
		content := bytes.Repeat([]byte{7}, size)

		for i := range most {
			err := os.WriteFile(filepath.Join(directory, strconv.Itoa(size)+"-"+strconv.Itoa(i)), content, 0o600)
			if errors.Is(err, unix.ENOSPC) {
				break
			}

			require.NoError(t, err)
		}
	}
}

// requireBlank requires that no filesystem was made.
func requireBlank(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
	t.Helper()

	image, err := os.Open(harness.ImageOf(d, claim.VolumeID))
	require.NoError(t, err)

	defer image.Close()

	blank, err := filesystem.IsBlank(image)
	require.NoError(t, err)
	require.True(t, blank, "nothing was formatted")
	require.Empty(t, harness.DevicesOf(t, d, claim.VolumeID), "want: no device is left")
}

// TestMkfsOptionsThatTheKernelDoesNotMount is about features that only some kernels have.
func TestMkfsOptionsThatTheKernelDoesNotMount(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for options, of := range map[string]struct{ fsType, reason string }{
		"-O quota": {"ext4", "CONFIG_QFMT_V2"}, "-O project,quota": {"ext4", "CONFIG_QFMT_V2"}, "-m crc=0": {"xfs", "CONFIG_XFS_SUPPORT_V4"},
	} {
		t.Run(options, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			request := harness.Formatted(of.fsType)
			request.Parameters = map[string]string{"mkfsOptions": options}
			claim := harness.NewVolume(t, d, request)
			require.NoError(t, d.Attach(t.Context(), claim))

			err := d.Stage(t.Context(), claim)
			if err == nil {
				harness.TakeDown(t, d, claim)
				t.Skip("this kernel mounts it")
			}

			harness.RequireCode(t, err, codes.InvalidArgument, options, "kernel", of.reason)
			requireBlank(t, d, claim)
			harness.RequireUnstaged(t, d, claim)
		})
	}
}

// TestMkfsOptionsThatCannotGrow are refused before there is a volume, with the reason.
func TestMkfsOptionsThatCannotGrow(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)

	for _, options := range []string{"-O bigalloc", "-C 65536", "-O ^has_journal,bigalloc"} {
		request := harness.Formatted("ext4")
		request.Name, request.Parameters = t.Name(), map[string]string{"mkfsOptions": options}

		_, err := d.CreateVolume(t.Context(), request)
		harness.RequireCode(t, err, codes.InvalidArgument, "mkfsOptions", "resize2fs grows no filesystem with clusters")
	}
}

// TestMkfsInAFullPoolFails, with options and without.
func TestMkfsInAFullPoolFails(t *testing.T) {
	namespace.NeedRoot(t)

	for fsType, options := range map[string]string{"ext4": "-m 0", "xfs": "", "btrfs": "-m single"} {
		for _, given := range slices.Compact([]string{"", options}) {
			t.Run(fsType+" "+given, func(t *testing.T) {
				d := harness.SmallPool(t, 512*harness.MiB)
				request := harness.Formatted(fsType)
				request.Parameters = map[string]string{"mkfsOptions": given}
				claim := harness.NewVolume(t, d, request)
				require.NoError(t, d.Attach(t.Context(), claim))

				filler, err := os.Create(filepath.Join(d.Pool(), "filler"))
				require.NoError(t, err)

				_, err = filler.ReadFrom(zeros{})
				require.ErrorIs(t, err, unix.ENOSPC)
				require.NoError(t, filler.Close())

				harness.RequireCode(t, d.Stage(t.Context(), claim), codes.ResourceExhausted, claim.VolumeID)
				require.NoError(t, os.Remove(filler.Name()))
				harness.BringUp(t, d, claim)
			})
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

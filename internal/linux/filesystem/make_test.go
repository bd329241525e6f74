package filesystem_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

func TestMadeFilesystemIsCleanAndMountable(t *testing.T) {
	needRoot(t)

	for _, blockSize := range []int{0, 512} {
		for name, made := range filesystems(t) {
			t.Run(name, func(t *testing.T) {
				image := newImage(t, imageSize)
				require.NoError(t, made.Make(t.Context(), image.Name(), filesystem.MakeOptions{BlockSize: blockSize}))

				name, err := filesystem.Detect(image)
				require.NoError(t, err)
				require.Equal(t, made.Name(), name)

				bytes, err := made.SizeBytes(image)
				require.NoError(t, err)
				require.Equal(t, imageSize, bytes, "want: the filesystem has the size of the image")

				requireState(t, filesystem.Clean, made, image.Name())

				o := loop.AttachOptions{BlockSize: blockSize}
				use := mount(t, made, image, o)
				sum := use.write(t)
				use.unmount(t)
				requireState(t, filesystem.Clean, made, image.Name())

				again := mount(t, made, image, o)
				again.requireData(t, sum)
				again.unmount(t)
			})
		}
	}
}

func TestAnEmptyFilesystemTakesLittleSpace(t *testing.T) {
	for name, made := range filesystems(t) {
		t.Run(name, func(t *testing.T) {
			image := newFilesystem(t, made, 100<<30)
			require.Less(t, allocated(t, image), int64(96*mebibyte), "want: an empty filesystem takes little space")
		})
	}
}

func TestMinimumSizeIsExact(t *testing.T) {
	for name, made := range filesystems(t) {
		t.Run(name, func(t *testing.T) {
			image := newFilesystem(t, made, made.MinimumBytes())
			requireState(t, filesystem.Clean, made, image.Name())

			small := newImage(t, made.MinimumBytes()-1)
			run := &recorder{}
			recorded, err := filesystem.ByName(made.Name(), run)
			require.NoError(t, err)

			err = recorded.Make(t.Context(), small.Name(), filesystem.MakeOptions{})
			require.ErrorIs(t, err, filesystem.ErrTooSmall)
			require.Empty(t, run.commands, "no tool is needed to know that")
		})
	}
}

func TestMakeReplacesAFilesystem(t *testing.T) {
	for _, before := range filesystem.Names() {
		for name, after := range filesystems(t) {
			t.Run(name, func(t *testing.T) {
				image := newFilesystem(t, byName(t, before), imageSize)
				require.NoError(t, after.Make(t.Context(), image.Name(), filesystem.MakeOptions{}))

				name, err := filesystem.Detect(image)
				require.NoError(t, err)
				require.Equal(t, after.Name(), name)
				requireState(t, filesystem.Clean, after, image.Name())
			})
		}
	}
}

func TestMakeFillsADevice(t *testing.T) {
	needRoot(t)

	for name, made := range filesystems(t) {
		t.Run(name, func(t *testing.T) {
			device := attach(t, newImage(t, imageSize), loop.AttachOptions{})
			require.NoError(t, made.Make(t.Context(), device.Path, filesystem.MakeOptions{}))
			requireState(t, filesystem.Clean, made, device.Path)

			bytes, err := made.SizeBytes(device.File())
			require.NoError(t, err)
			require.Equal(t, imageSize, bytes, "want: the filesystem has the size of the device")
		})
	}
}

func TestADeviceThatAChildBeingForkedHasIsAwaited(t *testing.T) {
	needRoot(t)

	xfs := byName(t, filesystem.XFS)
	device := attach(t, newFilesystem(t, xfs, imageSize), loop.AttachOptions{})

	other, err := os.OpenFile(device.Path, os.O_RDONLY|unix.O_EXCL, 0)
	require.NoError(t, err)
	child.CloseWhileForked(t, other, time.Second)

	requireState(t, filesystem.Clean, xfs, device.Path)
}

func TestAMountedFilesystemIsLeftAlone(t *testing.T) {
	needRoot(t)

	for name, made := range filesystems(t) {
		t.Run(name, func(t *testing.T) {
			use := mount(t, made, newFilesystem(t, made, imageSize), loop.AttachOptions{})

			require.ErrorIs(t, made.Make(t.Context(), use.device.Path, filesystem.MakeOptions{}), filesystem.ErrInUse)

			_, err := made.Check(t.Context(), use.device.Path)
			require.ErrorIs(t, err, filesystem.ErrInUse)

			use.requireData(t, use.write(t))
		})
	}
}

func TestMkfsOptionsReachTheFilesystem(t *testing.T) {
	for name, options := range map[string][]string{
		filesystem.Ext4:  {"-L", "touchstone", "-m0", "-E", "root_owner=1000:1000", "-O", "^has_journal", "-j"},
		filesystem.XFS:   {"-Ltouchstone", "-m", "reflink=0", "-d", "agcount=2"},
		filesystem.Btrfs: {"--label=touchstone", "--csum", "xxhash", "-M"},
	} {
		t.Run(name, func(t *testing.T) {
			made, image := byName(t, name), newImage(t, 320*mebibyte)
			require.NoError(t, made.Make(t.Context(), image.Name(), filesystem.MakeOptions{Options: options}))
			requireState(t, filesystem.Clean, made, image.Name())

			super := make([]byte, 128<<10)
			_, err := image.ReadAt(super, 0)
			require.NoError(t, err)
			require.Contains(t, string(super), "touchstone")
		})
	}
}

// Of two -E, mkfs.ext4 heeds the last one only.
func TestExtendedOptionsOfExt4AreJoined(t *testing.T) {
	run := &recorder{err: errRecorded}
	ext4, err := filesystem.ByName(filesystem.Ext4, run)
	require.NoError(t, err)

	image := newImage(t, 8*mebibyte)
	err = ext4.Make(t.Context(), image.Name(), filesystem.MakeOptions{Options: []string{"-E", "stride=2", "-m", "0"}})
	require.ErrorIs(t, err, errRecorded)
	require.Equal(t, []string{
		"-q", "-F", "-b", "4096", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard,stride=2",
		"-m", "0", "--", image.Name(),
	}, run.commands[0].Args)
}

func TestMkfsOptionsForOtherDevicesAreRefused(t *testing.T) {
	for name, refused := range map[string][][]string{
		filesystem.Ext4: {
			{"/dev/vda"},
			{""},
			{"-"},
			{"--"},
			{"-m"},
			{"-m", "0", "/etc/passwd"},
			{"-d", "/etc"},
			{"-d/etc"},
			{"-n"},
			{"-z", "/tmp/undo"},
			{"-l/etc/passwd"},
			{"-J", "size=4,device=/dev/vda"},
			{"-E", "stride=2,offset=4096"},
			{"-S"},
			{"-c"},
			{"-F"},
			{"-b", "1024"},
			{"-qn"},
			{"-jn"},
			{"-O", "journal_dev"},
			{"-L", "a\x00b"},
			// What the host does with the filesystem, or would do.
			{"-e", "panic"},
			{"-epanic"},
			{"-e", "continue"},
			{"-E", "mount_opts=errors=panic"},
			{"-E", "stride=2,mount_opts=discard"},
			{"-E", "stride=x"},
			{"-E", "discard"},
			{"-E", "lazy_itable_init=0"},
			{"-E", "test_fs"},
			{"-O", "mmp"},
			{"-O", "dir_index,^^extents"},
			{"-O", "none"},
			{"-O", "encrypt"},
			{"-o", "hurd"},
			{"-T", "hurd"},
			{"-M", "/"},
			{"-U", "random"},
			{"-m", "NaN"},
			{"-m", "51"},
			{"-N", "-1"},
			{"-J", "location=4"},
		},
		filesystem.XFS: {
			{"/dev/vda"},
			{"-c", "options=/etc/passwd"},
			{"-c/etc/passwd"},
			{"-p", "/etc/passwd"},
			{"-N"},
			{"-V"},
			{"-d", "name=/dev/vda"},
			{"-d", "agcount=2,file"},
			{"-dsize=1g"},
			{"-l", "logdev=/dev/vda"},
			{"-r", "rtdev=/dev/vda"},
			{"-s", "size=512"},
			{"-s", "size=4096,size=512"},
			{"-L"},
			{"-l", "internal=0"},
			{"-l", "size=64m,logdev=/dev/vda"},
			{"-m", "uuid=00000000-0000-0000-0000-000000000001"},
			{"-m", "crc=2"},
			{"-d", "rtinherit=1"},
			{"-d", "noalign=1"},
			{"-d", "agcount"},
		},
		filesystem.Btrfs: {
			{"/dev/vda"},
			{"-r", "/etc"},
			{"--rootdir=/etc"},
			{"--rootdir", "/etc"},
			{"-b", "1g"},
			{"--byte-count=1g"},
			{"-O", "list-all"},
			{"-Rlist-all"},
			{"-V"},
			{"--help"},
			{"--version"},
			{"--label"},
			{"--mixed=1"},
			{"-M1"},
			{"-U", "00000000-0000-0000-0000-000000000001"},
			{"--uuid=random"},
			{"-d", "raid0"},
			{"-O", "zoned"},
			{"--csum", "md5"},
		},
	} {
		for _, options := range refused {
			t.Run(name+" "+strings.Join(options, " "), func(t *testing.T) {
				run := &recorder{}
				made, err := filesystem.ByName(name, run)
				require.NoError(t, err)

				image := newImage(t, 320*mebibyte)
				err = made.Make(t.Context(), image.Name(), filesystem.MakeOptions{Options: options})
				require.ErrorIs(t, err, filesystem.ErrOption)
				require.Empty(t, run.commands, "want: mkfs is not run with such an option")
				require.ErrorIs(t, filesystem.CheckOptions(name, options), filesystem.ErrOption)
			})
		}
	}
}

// TestSupportedMkfsOptionsAreAllowed, some of each kind.
func TestSupportedMkfsOptionsAreAllowed(t *testing.T) {
	for name, allowed := range map[string][]string{
		filesystem.Ext4: {
			"-m 0", "-m0.5", "-O ^has_journal", "-O ^64bit,quota,project", "-E stride=16,stripe_width=64,nodiscard",
			"-E resize=4G", "-J size=8", "-I 512 -i 65536 -N 1000", "-T largefile", "-b 4096",
			"-E root_owner=1000:1000", "-L data -j -G 16 -g 32768",
		},
		filesystem.XFS: {
			"-L data", "-d agcount=4,su=64k,sw=4", "-i size=1024,maxpct=10", "-l size=64m", "-m reflink=0,rmapbt=1", "-n size=8k",
			"-b size=4096", "-s size=4096", "-d noalign",
		},
		filesystem.Btrfs: {
			"-L data --csum sha256", "-d single -m dup", "--nodesize=32k", "-O ^no-holes,block-group-tree", "-M", "-R free-space-tree",
		},
	} {
		for _, options := range allowed {
			require.NoError(t, filesystem.CheckOptions(name, strings.Fields(options)), "%s %s", name, options)
		}
	}
}

// TestARefusedOptionNamesTheAllowedOnes has the message say what to use instead.
func TestARefusedOptionNamesTheAllowedOnes(t *testing.T) {
	err := filesystem.CheckOptions(filesystem.Ext4, []string{"-e", "panic"})
	errtext.Require(t, err, `"-e" of mkfs.ext4; allowed are`)
	errtext.Require(t, err, "-E ")
	errtext.Require(t, err, "stride=NUMBER")
	errtext.Require(t, err, "-m PERCENT")

	err = filesystem.CheckOptions(filesystem.Ext4, []string{"-E", "mount_opts=errors=panic"})
	errtext.Require(t, err, "stride=NUMBER")
}

// TestOptionsThatPreventGrowthAreRefused, although they are options of mkfs.
func TestOptionsThatPreventGrowthAreRefused(t *testing.T) {
	for _, options := range [][]string{{"-C", "65536"}, {"-C65536"}, {"-O", "bigalloc"}, {"-O", "^has_journal,bigalloc"}} {
		err := filesystem.CheckOptions(filesystem.Ext4, options)
		require.ErrorIs(t, err, filesystem.ErrOption)
		errtext.Require(t, err, "grows no filesystem with clusters")
	}
}

// TestMkfsErrorOmitsTheSynopsis: mkfs.xfs prints all of its options after the reason.
func TestMkfsErrorOmitsTheSynopsis(t *testing.T) {
	for options, reason := range map[string]string{
		"-b size=1024": "cannot be smaller than sector size", "-i size=17": "17", "-d agsize=320m -d agcount=2": "agcount",
	} {
		err := byName(t, filesystem.XFS).Make(t.Context(), newImage(t, imageSize).Name(), filesystem.MakeOptions{Options: strings.Fields(options)})
		errtext.Require(t, err, reason)
		require.NotContains(t, strings.ToLower(err.Error()), "usage")
		require.NotContains(t, err.Error(), "/* ")
	}
}

func TestUnsupportedBlockSizeIsRefused(t *testing.T) {
	for name, made := range filesystems(t) {
		t.Run(name, func(t *testing.T) {
			err := made.Make(t.Context(), newImage(t, imageSize).Name(), filesystem.MakeOptions{BlockSize: 1000})
			require.ErrorIs(t, err, filesystem.ErrOption)
		})
	}
}

func TestMkfsErrorIsQuoted(t *testing.T) {
	for name, made := range filesystems(t) {
		t.Run(name, func(t *testing.T) {
			image := newImage(t, imageSize)
			err := made.Make(t.Context(), image.Name(), filesystem.MakeOptions{
				Options: []string{"-L", strings.Repeat("much too long for a label", 20)},
			})

			var tool *filesystem.ToolError
			if made.Name() == filesystem.Ext4 {
				// It cuts the label and goes on.
				require.NoError(t, err)

				return
			}

			require.ErrorAs(t, err, &tool)
			require.NotEmpty(t, tool.Detail, "want: the error has the words of mkfs")
			errtext.Require(t, err, image.Name())
		})
	}
}

func TestToolWithoutEffectFails(t *testing.T) {
	for name, made := range filesystems(t) {
		t.Run(name, func(t *testing.T) {
			idle, err := filesystem.ByName(made.Name(), &recorder{})
			require.NoError(t, err)

			err = idle.Make(t.Context(), newImage(t, imageSize).Name(), filesystem.MakeOptions{})
			require.ErrorIs(t, err, filesystem.ErrNoSuperblock)
		})
	}
}

func TestAPathWithALeadingDashIsNoOption(t *testing.T) {
	for name, made := range filesystems(t) {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			require.NoError(t, os.WriteFile("-n", nil, 0o600))
			require.NoError(t, os.Truncate("-n", imageSize))
			require.NoError(t, made.Make(t.Context(), "-n", filesystem.MakeOptions{}))
			requireState(t, filesystem.Clean, made, "-n")
		})
	}
}

func TestMissingImageIsReported(t *testing.T) {
	for name, made := range filesystems(t) {
		t.Run(name, func(t *testing.T) {
			nowhere := filepath.Join(t.TempDir(), "nowhere")
			require.ErrorIs(t, made.Make(t.Context(), nowhere, filesystem.MakeOptions{}), fs.ErrNotExist)

			_, err := made.Check(t.Context(), nowhere)
			require.ErrorIs(t, err, fs.ErrNotExist)
		})
	}
}

func TestMakeEndsWithItsContext(t *testing.T) {
	for name, made := range filesystems(t) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()

			err := made.Make(ctx, newImage(t, imageSize).Name(), filesystem.MakeOptions{})
			require.ErrorIs(t, err, context.Canceled)
		})
	}
}

func TestByNameRefusesUnknownNames(t *testing.T) {
	for _, name := range []string{"", "ext3", "EXT4", "zfs", "../ext4"} {
		_, err := filesystem.ByName(name, nil)
		require.ErrorIs(t, err, filesystem.ErrUnknown, name)
	}
}

package projectquota

import (
	"errors"
	"math"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The sizes are part of the kernel's interface: the ioctl numbers contain one of them.
func TestStructsAreAsLargeAsTheKernels(t *testing.T) {
	t.Parallel()

	require.EqualValues(t, 28, unsafe.Sizeof(fsxattr{}), "want: fsxattr is as large as the kernel's")
	require.EqualValues(t, fsIocFsGetXattr>>16&0x3fff, unsafe.Sizeof(fsxattr{}), "want: fsxattr is as large as FS_IOC_FSGETXATTR has it")
	require.EqualValues(t, fsIocFsSetXattr>>16&0x3fff, unsafe.Sizeof(fsxattr{}), "want: fsxattr is as large as FS_IOC_FSSETXATTR has it")
	require.EqualValues(t, 112, unsafe.Sizeof(diskQuota{}), "want: diskQuota is as large as the kernel's")
	require.EqualValues(t, 24, unsafe.Sizeof(fileState{}), "want: fileState is as large as the kernel's")
	require.EqualValues(t, 160, unsafe.Sizeof(quotaState{}), "want: quotaState is as large as the kernel's")
}

func TestBytesAreRoundedUpToBlocks(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		name   string
		bytes  int64
		blocks uint64
		back   int64
	}{
		{name: "none", bytes: 0, blocks: 0, back: 0},
		{name: "rounded up", bytes: 1, blocks: 1, back: 512},
		{name: "one less than a block", bytes: 511, blocks: 1, back: 512},
		{name: "a block", bytes: 512, blocks: 1, back: 512},
		{name: "one more than a block", bytes: 513, blocks: 2, back: 1024},
		{name: "exact", bytes: 1 << 30, blocks: 1 << 21, back: 1 << 30},
		{name: "negative", bytes: -1, blocks: 0, back: 0},
		{name: "largest", bytes: math.MaxInt64, blocks: 1 << 54, back: math.MaxInt64 / 512 * 512},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			require.Equal(t, test.blocks, toBlocks(test.bytes), "want: bytes are rounded up to blocks")
			require.Equal(t, test.back, toBytes(test.blocks), "want: blocks are converted to bytes")
		})
	}

	for count, want := range map[uint64]int64{
		math.MaxInt64 - 1: math.MaxInt64 - 1, math.MaxInt64: math.MaxInt64, math.MaxInt64 + 1: math.MaxInt64, math.MaxUint64: math.MaxInt64,
	} {
		require.Equal(t, want, toCount(count), "want: a count beyond int64 is the largest int64")
	}

	const most = math.MaxInt64 / 512 * 512

	for blocks, want := range map[uint64]int64{1<<54 - 2: most - 512, 1<<54 - 1: most, 1 << 54: most, math.MaxUint64: most} {
		require.Equal(t, want, toBytes(blocks), "want: more bytes than int64 has are as many as it has")
	}

	require.Equal(t, Quota{Limit: Amount{Bytes: 512, Inodes: 3}, Used: Amount{Bytes: 2560, Inodes: 6}},
		(&diskQuota{blockHard: 1, blockSoft: 2, inodeHard: 3, inodeSoft: 4, blocks: 5, inodes: 6}).quota())
	require.True(t, Quota{}.IsZero(), "want: neither a limit nor a file is zero")
	require.False(t, Quota{Limit: Amount{Inodes: 1}}.IsZero(), "want: a limit is not zero")
}

// TestAllListsEachProjectOnce, also of kernels that begin the list again behind its end.
func TestAllListsEachProjectOnce(t *testing.T) {
	t.Parallel()

	const last = math.MaxUint32 - 1

	for name, test := range map[string]struct {
		from       uint32
		has        []uint32
		atEnd      error
		again      bool
		want       []uint32
		limit      int
		failsAtEnd bool
	}{
		"none":                    {atEnd: unix.ENOENT},
		"of XFS":                  {has: []uint32{0, 1, 7, 8}, atEnd: unix.ENOENT, want: []uint32{0, 1, 7, 8}},
		"of ext4":                 {has: []uint32{3, last - 1}, atEnd: unix.ESRCH, want: []uint32{3, last - 1}},
		"from one on":             {from: 7, has: []uint32{1, 7, 9}, atEnd: unix.ENOENT, want: []uint32{7, 9}},
		"the caller ends it":      {has: []uint32{1, 7, 9}, atEnd: unix.ENOENT, want: []uint32{1, 7}, limit: 2},
		"an error":                {has: []uint32{1}, atEnd: unix.EIO, want: []uint32{1}, failsAtEnd: true},
		"the list begins again":   {from: 1, has: []uint32{0, 1, 2}, again: true, want: []uint32{1, 2}},
		"the largest id":          {has: []uint32{last}, atEnd: unix.EIO, want: []uint32{last}},
		"a number that is no id":  {has: []uint32{last + 1}, atEnd: unix.EIO, want: []uint32{last + 1}},
		"one that is before from": {from: 2, has: []uint32{1}, again: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			next := func(id uint32) (Project, error) {
				for _, each := range test.has {
					if each >= id {
						return Project{ID: each}, nil
					}
				}

				if test.again {
					return Project{ID: test.has[0]}, nil
				}

				return Project{}, os.NewSyscallError("quotactl_fd", test.atEnd)
			}

			var (
				got    []uint32
				failed error
			)

			for found, err := range all(test.from, next) {
				require.NoError(t, failed, "want: an error ends the list")

				if failed = err; err != nil {
					continue
				}

				got = append(got, found.ID)
				require.LessOrEqual(t, len(got), len(test.has), "want: the list ends")

				if len(got) == test.limit {
					break
				}
			}

			require.Equal(t, test.want, got)
			require.Equal(t, test.failsAtEnd, failed != nil, "%v", failed)
		})
	}
}

// A filesystem without quotas is not an error: what needs them falls back.
func TestEnforcedWithoutQuotas(t *testing.T) {
	t.Parallel()

	for _, dir := range []string{"/proc", "/dev/shm", t.TempDir()} {
		file, err := os.Open(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}

		require.NoError(t, err)

		_, err = Enforced(file)
		require.NoError(t, err, dir)
		require.NoError(t, file.Close())
	}
}

func TestMembershipUnsupported(t *testing.T) {
	t.Parallel()

	file, err := os.Open("/proc")
	require.NoError(t, err)

	defer file.Close()

	_, err = MembershipOf(file)
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

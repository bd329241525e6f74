package projectquota

import (
	"errors"
	"math"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// The sizes are part of the kernel's interface: the ioctl numbers contain one of them.
func TestStructSizes(t *testing.T) {
	t.Parallel()

	require.EqualValues(t, 28, unsafe.Sizeof(fsxattr{}), "want: fsxattr is as large as the kernel's")
	require.EqualValues(t, fsIocFsGetXattr>>16&0x3fff, unsafe.Sizeof(fsxattr{}), "want: fsxattr is as large as FS_IOC_FSGETXATTR has it")
	require.EqualValues(t, fsIocFsSetXattr>>16&0x3fff, unsafe.Sizeof(fsxattr{}), "want: fsxattr is as large as FS_IOC_FSSETXATTR has it")
	require.EqualValues(t, 112, unsafe.Sizeof(diskQuota{}), "want: diskQuota is as large as the kernel's")
	require.EqualValues(t, 24, unsafe.Sizeof(fileState{}), "want: fileState is as large as the kernel's")
	require.EqualValues(t, 160, unsafe.Sizeof(quotaState{}), "want: quotaState is as large as the kernel's")
}

func TestUnits(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		name   string
		bytes  int64
		blocks uint64
		back   int64
	}{
		{name: "none", bytes: 0, blocks: 0, back: 0},
		{name: "rounded up", bytes: 1, blocks: 1, back: 512},
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

	require.EqualValues(t, math.MaxInt64, toCount(math.MaxUint64), "want: a count beyond int64 is the largest int64")
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

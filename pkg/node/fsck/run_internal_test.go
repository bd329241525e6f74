package fsck

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/poolset"
)

func TestOnlineChecksNeedAnImageInUse(t *testing.T) {
	t.Parallel()

	image := volume.Parameters{Backing: volume.BackingImage}
	direct := volume.Parameters{Backing: volume.BackingImage, DirectAssign: true}

	for name, test := range map[string]struct {
		parameters volume.Parameters
		how        string
		hanging    bool
		want       string
	}{
		"mounted image":          {image, HowOnline, false, ""},
		"offline, but in use":    {image, HowOffline, false, "it is in use at /path"},
		"last probe hangs":       {image, HowOnline, true, "it does not answer"},
		"directory":              {volume.Parameters{Backing: volume.BackingDirectory}, HowOnline, false, "it is a directory"},
		"assigned to a guest":    {direct, HowOnline, false, "a virtual machine may have it mounted"},
		"directory, and offline": {volume.Parameters{Backing: volume.BackingDirectory}, HowOffline, false, "it is a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			err := checkableOnline(&staged.Volume{Parameters: test.parameters}, "/path", test.how, test.hanging)
			if test.want == "" {
				require.NoError(t, err)
			} else {
				errtext.Require(t, err, test.want)
			}
		})
	}
}

func TestToolErrorsAreRecorded(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"tool failed":             {&filesystem.ToolError{}, true},
		"frozen for too long":     {errTooSlow, true},
		"answer to the caller":    {rpc.Errorf(codes.Aborted, "it was unstaged"), false},
		"volume was deleted":      {pool.ErrMissing, false},
		"frozen by another":       {filesystem.ErrFrozen, false},
		"thawed by another":       {filesystem.ErrNotFrozen, false},
		"driver is shutting down": {operation.ErrDraining, false},
		"panic":                   {&operation.PanicError{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, isCheckFailure(t.Context(), test.err), "want: the error is recorded if the check failed")
		})
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.False(t, isCheckFailure(ended, errTooSlow), "a check that was cancelled has no verdict")
}

func TestFrozenWorkIsLimited(t *testing.T) {
	t.Parallel()

	err := withLimit(t.Context(), 0, func(ctx context.Context) error {
		<-ctx.Done()

		return context.Cause(ctx)
	})
	require.ErrorIs(t, err, errTooSlow)

	var bounded func() error

	require.NoError(t, withLimit(t.Context(), maxFrozen, func(ctx context.Context) error {
		bounded = ctx.Err

		return ctx.Err()
	}))
	require.ErrorIs(t, bounded(), context.Canceled, "want: what still runs ends with the work")

	other := errors.New("another error")
	require.ErrorIs(t, withLimit(t.Context(), maxFrozen, func(context.Context) error { return other }), other)
}

// identified is a filesystem whose UUID was changed, or not completely.
type identified struct {
	filesystem.Filesystem

	complete bool
	err      error
}

func (i identified) HasUUID(io.ReaderAt, string) (bool, error) { return i.complete, i.err }

// TestAnInterruptedChangeOfTheUUIDIsNotJudged: no check can, before staging has completed it.
func TestAnInterruptedChangeOfTheUUIDIsNotJudged(t *testing.T) {
	t.Parallel()

	pools, err := poolset.Open(map[string]string{"default": t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pools.Close()) })

	stored, err := pools.Get("default")
	require.NoError(t, err)

	blank, ext4 := volume.NewID(), volume.NewID()
	require.NoError(t, stored.Images.Create(blank, 1<<20, false))
	require.NoError(t, stored.Images.Create(ext4, 1<<20, false))

	image, err := os.OpenFile(stored.ObjectPath(pool.Object{ID: ext4, Backing: volume.BackingImage}), os.O_WRONLY, 0)
	require.NoError(t, err)

	defer image.Close()

	_, err = image.WriteAt([]byte{0x53, 0xef}, 1024+0x38)
	require.NoError(t, err)

	for name, test := range map[string]struct {
		id   string
		fs   identified
		want string
	}{
		"complete":                    {ext4, identified{complete: true}, ""},
		"interrupted":                 {ext4, identified{}, "UUID was interrupted"},
		"damaged, which a check says": {ext4, identified{err: io.ErrUnexpectedEOF}, ""},
		"without a superblock":        {blank, identified{}, ""},
		"without an image":            {volume.NewID(), identified{complete: true}, "not in the pool"},
	} {
		err := (&run{volumeID: test.id, pool: stored, fs: test.fs}).checkUUIDComplete()
		if test.want == "" {
			require.NoError(t, err, name)
		} else {
			errtext.Require(t, err, test.want, name)
		}
	}
}

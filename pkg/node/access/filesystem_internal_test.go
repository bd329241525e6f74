package access

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/poolset"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

var errFake = errors.New("the fake fails")

// fakeFilesystem answers as a test says. It is on no device.
type fakeFilesystem struct {
	filesystem.Filesystem

	made, grown, sized error
	size               int64
}

func (fakeFilesystem) Name() string { return "ext4" }

func (f fakeFilesystem) Make(context.Context, string, filesystem.MakeOptions) error { return f.made }

func (f fakeFilesystem) GrowUnmounted(context.Context, string) error { return f.grown }

func (f fakeFilesystem) SizeBytes(io.ReaderAt) (int64, error) { return f.size, f.sized }

// nowhere is a device that cannot be mounted.
var nowhere = &loop.Device{Status: loop.Status{Path: "/none", SizeBytes: 1 << 30}}

// TestAFilesystemGrowsWhereItCan has filesystems that grow, refuse to, or have to be mounted for that.
func TestAFilesystemGrowsWhereItCan(t *testing.T) {
	t.Parallel()

	_, unmountable := mount.Mount(nowhere.Path, "ext4", mount.Options{})
	require.Error(t, unmountable, "want: nothing is there to mount")

	for name, test := range map[string]struct {
		fs   fakeFilesystem
		want error
		code codes.Code
	}{
		"grown":                        {fakeFilesystem{}, nil, codes.OK},
		"a failure":                    {fakeFilesystem{grown: errFake}, errFake, codes.Internal},
		"too large":                    {fakeFilesystem{grown: filesystem.ErrGrowLimit}, filesystem.ErrGrowLimit, codes.FailedPrecondition},
		"unreadable":                   {fakeFilesystem{grown: filesystem.ErrNeedsMount, sized: errFake}, errFake, codes.Internal},
		"nothing to gain":              {fakeFilesystem{grown: filesystem.ErrNeedsMount, size: nowhere.SizeBytes - leastGrowth + 1}, nil, codes.OK},
		"the least growth wants mount": {fakeFilesystem{grown: filesystem.ErrNeedsMount, size: nowhere.SizeBytes - leastGrowth}, unmountable, codes.Internal},
	} {
		err := Grow(t.Context(), test.fs, nowhere)
		rpccode.Require(t, rpc.Status(err), test.code, name)

		if test.want != unmountable { //nolint:errorlint // it is this very error
			require.ErrorIs(t, err, test.want, name)
		}
	}
}

func TestAFailureOfAMountWithoutFlagsIsReturnedAsItIs(t *testing.T) {
	t.Parallel()

	require.Equal(t, errFake, explainMountFailure(errFake, fakeFilesystem{}, nowhere, mount.Options{}))
}

// TestMakeExplainsItsFailure blames the options of mkfs for what is their fault.
func TestMakeExplainsItsFailure(t *testing.T) {
	t.Parallel()

	pools, err := poolset.Open(map[string]string{"default": t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pools.Close()) })

	stored, err := pools.Get("default")
	require.NoError(t, err)

	refused := &filesystem.ToolError{Tool: "mkfs.ext4", ExitCode: 1}
	full := errors.Join(refused, pool.ErrNoSpace)

	for name, test := range map[string]struct {
		made    error
		options string
		thick   bool
		code    codes.Code
	}{
		"without options":        {made: refused, code: codes.Internal},
		"with options":           {made: refused, options: "-m 7", code: codes.InvalidArgument},
		"with options, thick":    {made: refused, options: "-m 7", thick: true, code: codes.InvalidArgument},
		"another failure":        {made: errFake, options: "-m 7", code: codes.Internal},
		"no space, with options": {made: full, options: "-m 7", code: codes.ResourceExhausted},
		"made":                   {code: codes.OK},
	} {
		f := Filesystems{}
		v := &staged.Volume{Parameters: volume.Parameters{MkfsOptions: test.options}}

		if test.thick {
			v.Parameters.Provisioning = volume.Thick
		}

		err := f.Make(t.Context(), v, stored, fakeFilesystem{made: test.made}, "/none")
		rpccode.Require(t, rpc.Status(err), test.code, name)
		require.ErrorIs(t, err, test.made, name)
	}
}

// TestCheckFits compares an image with its filesystem, unless it is mounted.
func TestCheckFits(t *testing.T) {
	t.Parallel()

	image, err := os.Create(filepath.Join(t.TempDir(), "image"))
	require.NoError(t, err)

	closed := func() *os.File {
		require.NoError(t, image.Close())

		return image
	}
	published := &staged.Volume{Publications: []staged.Publication{{}}}

	require.NoError(t, checkFits(&staged.Volume{}, fakeFilesystem{}, image))
	require.ErrorIs(t, checkFits(&staged.Volume{}, fakeFilesystem{size: 1}, image), filesystem.ErrTruncated)
	require.NoError(t, checkFits(published, fakeFilesystem{size: 1}, image), "want: what is mounted goes on")
	require.ErrorIs(t, checkFits(&staged.Volume{}, fakeFilesystem{}, closed()), os.ErrClosed)
}

// TestAnotherLimitOfADirectoryIsRefused compares the limit of a directory with what was asked for.
func TestAnotherLimitOfADirectoryIsRefused(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		asked *csi.CapacityRange
		want  codes.Code
	}{
		"nothing":          {nil, codes.OK},
		"the limit":        {&csi.CapacityRange{RequiredBytes: 100, LimitBytes: 100}, codes.OK},
		"less":             {&csi.CapacityRange{RequiredBytes: 99}, codes.OK},
		"more":             {&csi.CapacityRange{RequiredBytes: 101}, codes.OutOfRange},
		"at most less":     {&csi.CapacityRange{LimitBytes: 99}, codes.OutOfRange},
		"at most a byte":   {&csi.CapacityRange{LimitBytes: 1}, codes.OutOfRange},
		"at most more":     {&csi.CapacityRange{LimitBytes: 101}, codes.OK},
		"less and at most": {&csi.CapacityRange{RequiredBytes: 1, LimitBytes: 99}, codes.OutOfRange},
	} {
		rpccode.Require(t, rpc.Status(checkLimit(100, test.asked)), test.want, name)
	}
}

// TestWithOwn is the usage of a directory without a limit, in a filesystem that counts inodes and in another one.
func TestWithOwn(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct{ filesystem, want mount.Amount }{
		"inodes":    {mount.Amount{Total: 1, Available: 1}, mount.Amount{Total: 4, Used: 3, Available: 1}},
		"no inodes": {mount.Amount{}, mount.Amount{}},
	} {
		all := mount.Usage{Bytes: mount.Amount{Total: 1000, Used: 900, Available: 100}, Inodes: test.filesystem}
		want := mount.Usage{Bytes: mount.Amount{Total: 160, Used: 60, Available: 100}, Inodes: test.want}
		require.Equal(t, want, withOwn(all, tree.Usage{Bytes: 60, Inodes: 3}), name)
	}
}

// TestSetGroupNeedsAGroup has no tree: none is changed.
func TestSetGroupNeedsAGroup(t *testing.T) {
	t.Parallel()

	readOnly := mount.Options{}.WithReadOnly()

	require.NoError(t, SetGroup(t.Context(), volume.Capability{}, mount.Options{}, nil, nil))
	require.NoError(t, SetGroup(t.Context(), volume.Capability{MountGroup: "4711"}, readOnly, nil, nil), "want: what is read stays")
	rpccode.Require(t, rpc.Status(SetGroup(t.Context(), volume.Capability{MountGroup: "wheel"}, mount.Options{}, nil, nil)), codes.InvalidArgument)
}

// fakeWay has filesystems to freeze.
type fakeWay struct {
	Access

	targets freeze.Targets
	failure error
}

func (w fakeWay) AddFreezeTargets(_ *staged.Volume, targets *freeze.Targets) error {
	*targets = w.targets

	return w.failure
}

// TestCheckThawed fails where it is unknown, and leaves no root open.
func TestCheckThawed(t *testing.T) {
	t.Parallel()

	closed, open := rootOf(t), rootOf(t)
	require.NoError(t, closed.Close())

	require.NoError(t, checkThawed(fakeWay{}, nil))
	require.ErrorIs(t, checkThawed(fakeWay{failure: errFake}, nil), errFake)
	both := freeze.Targets{Filesystems: []freeze.Filesystem{{Root: closed}, {Root: open}}}
	require.Error(t, checkThawed(fakeWay{targets: both}, nil), "want: it is unknown whether the first one is frozen")
	require.ErrorIs(t, open.Close(), os.ErrClosed, "want: all roots are closed")
}

func rootOf(t *testing.T) *os.File {
	t.Helper()

	root, err := os.Open(t.TempDir())
	require.NoError(t, err)

	return root
}

// TestAGrowthIsAwaitedBeforeTheUnmount, which would find the mount busy.
func TestAGrowthIsAwaitedBeforeTheUnmount(t *testing.T) {
	t.Parallel()

	ended, end := context.WithCancelCause(t.Context())
	end(errFake)

	g := &growths{}
	g.running.Store("volume", make(chan struct{}))
	require.ErrorIs(t, g.wait(ended, "volume", growthEndLimit), errFake)
	require.NoError(t, g.wait(ended, "another", growthEndLimit))
}

package access

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/quota"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

func TestMountOptions(t *testing.T) {
	t.Parallel()

	plain, err := mount.ParseFlags(nil)
	require.NoError(t, err)

	for name, test := range map[string]struct {
		capability volume.Capability
		readOnly   bool
		want       mount.Options
	}{
		"mounted":             {volume.Capability{}, false, plain.WithoutDevices()},
		"mounted read-only":   {volume.Capability{}, true, plain.WithoutDevices().WithReadOnly()},
		"raw block":           {volume.Capability{Block: true}, false, plain},
		"raw block read-only": {volume.Capability{Block: true}, true, plain.WithReadOnly()},
	} {
		got, err := MountOptions(test.capability, test.readOnly)
		require.NoError(t, err, name)
		require.Equal(t, test.want, got, name)
	}

	_, err = MountOptions(volume.Capability{MountFlags: []string{"bind"}}, false)
	require.Error(t, err, "want: a flag that no volume can have is refused")
}

// TestWithQuota is the usage of a directory with a limit, in a filesystem that has less or more.
func TestWithQuota(t *testing.T) {
	t.Parallel()

	filesystem := mount.Usage{Bytes: mount.Amount{Total: 1000, Used: 900, Available: 100}, Inodes: mount.Amount{Total: 50, Used: 40, Available: 10}}

	for name, test := range map[string]struct {
		counted quota.Usage
		want    mount.Usage
	}{
		"the limit is nearer": {
			quota.Usage{Bytes: 60, LimitBytes: 80},
			mount.Usage{Bytes: mount.Amount{Total: 80, Used: 60, Available: 20}, Inodes: filesystem.Inodes},
		},
		"the filesystem is nearer": {
			quota.Usage{Bytes: 60, LimitBytes: 200},
			mount.Usage{Bytes: mount.Amount{Total: 200, Used: 60, Available: 100}, Inodes: filesystem.Inodes},
		},
		"more than the limit": {
			quota.Usage{Bytes: 90, LimitBytes: 80},
			mount.Usage{Bytes: mount.Amount{Total: 80, Used: 90}, Inodes: filesystem.Inodes},
		},
		"inodes are limited": {
			quota.Usage{Bytes: 60, LimitBytes: 80, Inodes: 3, LimitInodes: 4},
			mount.Usage{Bytes: mount.Amount{Total: 80, Used: 60, Available: 20}, Inodes: mount.Amount{Total: 4, Used: 3, Available: 1}},
		},
	} {
		require.Equal(t, test.want, withQuota(filesystem, test.counted), name)
	}
}

// TestGuestCause is what an answer says of a guest's failure: never the guest's own words.
func TestGuestCause(t *testing.T) {
	t.Parallel()

	other := errors.New("the directory is gone")

	for _, test := range []struct{ failure, want error }{
		{errReadOnlyGuest, errReadOnlyGuest},
		{fmt.Errorf("%w: words of a guest", kata.ErrUnimplemented), kata.ErrUnimplemented},
		{fmt.Errorf("%w: words of a guest", kata.ErrNoSandbox), kata.ErrNoSandbox},
		{fmt.Errorf("%w: words of a guest", kata.ErrNoAnswer), kata.ErrNoAnswer},
		{other, other},
	} {
		require.Equal(t, test.want, guestCause(test.failure))
	}
}

// TestCheckWritable refuses a copy of a filesystem that has stopped writing.
func TestCheckWritable(t *testing.T) {
	t.Parallel()

	writable, readOnly := &staged.Volume{}, &staged.Volume{Capability: volume.Capability{MountFlags: []string{"ro"}}}

	for name, test := range map[string]struct {
		v     *staged.Volume
		point mount.Point
		want  codes.Code
	}{
		"mounted for writing":                {writable, mount.Point{}, codes.OK},
		"an error has made it read-only":     {writable, mount.Point{SuperReadOnly: true}, codes.FailedPrecondition},
		"mounted for reading":                {readOnly, mount.Point{SuperReadOnly: true}, codes.OK},
		"an emergency":                       {readOnly, mount.Point{SuperOptions: []string{"emergency_ro"}}, codes.FailedPrecondition},
		"it has shut down":                   {writable, mount.Point{SuperOptions: []string{"shutdown"}}, codes.FailedPrecondition},
		"a flag that is none of a volume":    {&staged.Volume{Capability: volume.Capability{MountFlags: []string{"bind"}}}, mount.Point{}, codes.InvalidArgument},
		"an option that has nothing to do":   {writable, mount.Point{SuperOptions: []string{"errors=remount-ro"}}, codes.OK},
		"read-only and mounted for that, rw": {&staged.Volume{Capability: volume.Capability{MountFlags: []string{"rw"}}}, mount.Point{SuperReadOnly: true}, codes.FailedPrecondition},
	} {
		rpccode.Require(t, rpc.Status(checkWritable(test.v, test.point)), test.want, name)
	}
}

func TestPoolOf(t *testing.T) {
	t.Parallel()

	pools, err := pool.OpenSet(map[string]string{"default": t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pools.Close()) })

	p := &Provider{config: Config{Pools: pools, Ephemeral: pools.Ephemeral()}}
	in := func(name string, ephemeral bool) *staged.Volume {
		return &staged.Volume{VolumeID: "a", Parameters: volume.Parameters{Pool: name}, Ephemeral: ephemeral}
	}

	of, err := p.PoolOf(in("default", false))
	require.NoError(t, err)
	inline, err := p.PoolOf(in("default", true))
	require.NoError(t, err)
	require.Equal(t, filepath.Join(of.Path(), "ephemeral"), inline.Path(), "inline volumes are in the pool's directory for them")

	_, err = p.PoolOf(in("other", false))
	rpccode.Require(t, err, codes.FailedPrecondition, "a pool that the node does not have")

	require.NoError(t, pools.Fail("default", os.ErrPermission))
	_, err = p.PoolOf(in("default", false))
	require.ErrorIs(t, err, pool.ErrUnavailable)
	rpccode.Require(t, err, codes.Unavailable, "a pool that is not served")
}

// TestMayFormat has images that may be formatted, and others.
func TestMayFormat(t *testing.T) {
	t.Parallel()

	ext4, err := filesystem.ByName(filesystem.Ext4, nil)
	require.NoError(t, err)

	for name, test := range map[string]struct {
		content string
		at      int64
		had     bool
		may     bool
		says    string
	}{
		"blank":                            {may: true},
		"blank, and had a filesystem":      {had: true, says: "its data is lost"},
		"data":                             {content: "data", at: 1 << 19, says: "it holds data"},
		"the wanted filesystem":            {content: "\x53\xef", at: 1024 + 56},
		"the wanted filesystem, which was": {content: "\x53\xef", at: 1024 + 56, had: true},
	} {
		image, err := os.Create(filepath.Join(t.TempDir(), "image"))
		require.NoError(t, err)
		require.NoError(t, image.Truncate(1<<20))

		if test.content != "" {
			_, err = image.WriteAt([]byte(test.content), test.at)
			require.NoError(t, err)
		}

		may, err := mayFormat(image, ext4, test.had)
		require.Equal(t, test.may, may, name)

		if test.says == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, test.says, name)
		}

		require.NoError(t, image.Close())

		_, err = mayFormat(image, ext4, test.had)
		require.Error(t, err, "want: an image that cannot be read is not formatted: %s", name)
	}
}

// TestHeldDevices records the devices of volumes, and searches again for those that a start did not find.
func TestHeldDevices(t *testing.T) {
	t.Parallel()

	failure, searched := errors.New("no descriptor is left"), 0
	search := failure

	d := newHeldDevices(loop.NewLoops(loop.LoopsOptions{}), nil)
	d.find = func(volumeID string) error {
		searched++

		if search == nil {
			d.add(volumeID, 1_000_000, 7, false)
		}

		return search
	}

	none := Attachments{deviceNumbers: deviceNumbers{Staged: NoDevice, ReadOnly: NoDevice}}

	got, err := d.found("a")
	require.NoError(t, err)
	require.Equal(t, none, got)
	require.Zero(t, searched, "want: no search without a failure")

	d.addNotFound("a")

	got, err = d.found("a")
	require.ErrorIs(t, err, failure)
	require.Equal(t, none, got)

	numbers, err := d.get("a")
	require.ErrorIs(t, err, failure, "unknown is not absent")
	require.Equal(t, none.deviceNumbers, numbers)

	_, attached, err := d.attachment("a")
	require.ErrorIs(t, err, failure)
	require.False(t, attached, "want: no device is known")

	search = nil

	for range 2 {
		got, err = d.found("a")
		require.NoError(t, err)
		require.Equal(t, Attachments{deviceNumbers: deviceNumbers{Staged: 1_000_000, ReadOnly: NoDevice}, StagedSequence: 7}, got)
	}

	require.Equal(t, 4, searched, "want: what was found is not searched for")

	d.add("a", 1_000_001, 8, true)
	require.True(t, d.had("a", 1_000_000), "want: the first device")
	require.True(t, d.had("a", 1_000_001), "want: the second device")
	require.False(t, d.had("a", 1_000_002), "want: no other device")

	d.dropReader("a")
	d.dropReader("b")
	require.Equal(t, got, d.recorded("a"))
	require.Equal(t, none, d.recorded("b"))

	d.addNotFound("a")
	d.drop("a")

	got, err = d.found("a")
	require.NoError(t, err)
	require.Equal(t, none, got)
	require.Equal(t, 4, searched, "want: no search for a volume that was dropped")
}

// TestHeldDevicesOfSeveralVolumesAtOnce changes and reads records at the same time.
func TestHeldDevicesOfSeveralVolumesAtOnce(t *testing.T) {
	t.Parallel()

	d := newHeldDevices(nil, func(string) error { return nil })
	g := &growths{}

	var changing sync.WaitGroup

	for worker := range 8 {
		changing.Go(func() {
			id := strconv.Itoa(worker)

			for range 500 {
				d.addNotFound(id)
				d.add(id, worker, 1, false)
				d.dropReader(id)

				if got, err := d.found(id); err != nil || got.Staged != worker {
					t.Errorf("volume %s has device %d: %v", id, got.Staged, err)
				}

				d.drop(id)

				if err := g.run(context.Background(), id, time.Minute, func() error { return nil }); err != nil {
					t.Errorf("volume %s is not grown: %v", id, err)
				}

				if err := g.wait(context.Background(), id, time.Minute); err != nil {
					t.Errorf("volume %s still grows: %v", id, err)
				}
			}
		})
	}

	changing.Wait()
}

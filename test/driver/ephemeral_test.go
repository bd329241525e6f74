package driver_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// inlineClaim is a pod's inline volume as the kubelet asks for it.
func inlineClaim(t *testing.T, d *harness.Driver, attributes map[string]string) *csiclient.Publication {
	t.Helper()

	digest := make([]byte, 32)
	_, _ = rand.Read(digest)

	id := "csi-" + hex.EncodeToString(digest)
	attached := map[string]string{
		"csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.name": "a-pod",
		"csi.storage.k8s.io/serviceAccount.name": "default",
	}
	maps.Copy(attached, attributes)

	claim := &csiclient.Publication{
		VolumeID: id, VolumeContext: attached, Capability: csiclient.MountCapability(writer, ""),
		TargetPath: filepath.Join(d.Config.KubeletDir, "pods", id, "mount"),
	}
	t.Cleanup(func() { require.NoError(t, d.Unpublish(context.WithoutCancel(t.Context()), claim)) })

	return claim
}

func small() map[string]string { return map[string]string{"size": "16Mi"} }

// contents are the names in the pool's directory for ephemeral volumes.
func contents(t *testing.T, d *harness.Driver) []string {
	t.Helper()

	var found []string

	require.NoError(t, filepath.WalkDir(filepath.Join(d.Pool(), "ephemeral"), func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed since its directory was read
		}

		if err == nil && strings.Count(strings.TrimPrefix(path, d.Pool()), "/") == 3 {
			found = append(found, entry.Name())
		}

		return err
	}))

	return found
}

// gone requires that nothing of an ephemeral volume is left; the harness looks
// for mounts and devices.
func gone(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
	t.Helper()
	require.NoDirExists(t, claim.TargetPath)
	// A start removes in the background.
	require.Eventually(t, func() bool { return len(contents(t, d)) == 0 }, time.Minute, 10*time.Millisecond,
		"waited for the volume to be gone from the pool")
}

func TestEphemeralLife(t *testing.T) {
	namespace.NeedRoot(t)

	for name, test := range map[string]struct {
		attributes map[string]string
		capability *csi.VolumeCapability
	}{
		"ext4":       {attributes: small(), capability: csiclient.MountCapability(writer, "")},
		"xfs":        {attributes: map[string]string{"size": "300Mi"}, capability: csiclient.MountCapability(multiWriter, "xfs", "noatime")},
		"btrfs":      {attributes: map[string]string{"size": "128Mi", "csi.storage.k8s.io/fstype": "btrfs"}, capability: csiclient.MountCapability(writer, "")},
		"thick":      {attributes: map[string]string{"size": "16Mi", "provisioning": "thick"}, capability: csiclient.MountCapability(writer, "ext4")},
		"512 blocks": {attributes: map[string]string{"size": "16Mi", "blockSize": "512"}, capability: csiclient.MountCapability(writer, "ext4")},
		"directory":  {attributes: map[string]string{"size": "16Mi", "backing": "directory"}, capability: csiclient.MountCapability(writer, "")},
	} {
		t.Run(name, func(t *testing.T) {
			d := harness.Start(t)
			claim := inlineClaim(t, d, test.attributes)
			claim.Capability = test.capability

			require.NoError(t, d.Publish(t.Context(), claim))
			writeFile(t, filepath.Join(claim.TargetPath, "data"), "the pod's own")
			require.NoError(t, d.Publish(t.Context(), claim))

			// The controller neither lists it nor takes it for an orphan.
			require.Empty(t, listAll(t, d))
			d.Restart(t)
			require.NoError(t, d.Publish(t.Context(), claim))
			fileHolds(t, filepath.Join(claim.TargetPath, "data"), "the pod's own")
			require.Len(t, contents(t, d), 1)

			stats, err := d.NodeGetVolumeStats(t.Context(),
				&csi.NodeGetVolumeStatsRequest{VolumeId: claim.VolumeID, VolumePath: claim.TargetPath})
			require.NoError(t, err)
			require.Positive(t, stats.GetUsage()[0].GetTotal())

			_, err = d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
				VolumeId: claim.VolumeID, VolumePath: claim.TargetPath, CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 30},
			})
			fails(t, err, codes.FailedPrecondition, "ephemeral", "size")

			// Of another target nothing is undone.
			require.NoError(t, d.Unpublish(t.Context(), another(claim, "elsewhere")))
			fileHolds(t, filepath.Join(claim.TargetPath, "data"), "the pod's own")

			require.NoError(t, d.Unpublish(t.Context(), claim))
			gone(t, d, claim)
			require.NoError(t, d.Unpublish(t.Context(), claim))

			_, err = d.NodeGetVolumeStats(t.Context(),
				&csi.NodeGetVolumeStatsRequest{VolumeId: claim.VolumeID, VolumePath: claim.TargetPath})
			fails(t, err, codes.NotFound)

			// The same pod once more finds nothing of before.
			require.NoError(t, d.Publish(t.Context(), claim))
			require.NoFileExists(t, filepath.Join(claim.TargetPath, "data"))
			require.NoError(t, d.Unpublish(t.Context(), claim))
			gone(t, d, claim)
		})
	}
}

func TestEphemeralSizeIsEnforced(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t)
	claim := inlineClaim(t, d, small())
	require.NoError(t, d.Publish(t.Context(), claim))

	file, err := os.Create(filepath.Join(claim.TargetPath, "data"))
	require.NoError(t, err)

	written, err := io.Copy(file, io.LimitReader(rand.Reader, 64*mib))
	err = errors.Join(err, file.Sync(), file.Close())
	require.ErrorContains(t, err, "no space left on device")
	require.Less(t, written, int64(16*mib))
}

func TestEphemeralReadOnly(t *testing.T) {
	namespace.NeedRoot(t)

	for _, attributes := range []map[string]string{
		small(), {"size": "300Mi", "csi.storage.k8s.io/fstype": "xfs"}, {"backing": "directory"},
	} {
		d := harness.Start(t)
		claim := inlineClaim(t, d, attributes)
		claim.ReadOnly = true
		require.NoError(t, d.Publish(t.Context(), claim))

		err := os.WriteFile(filepath.Join(claim.TargetPath, "data"), nil, 0o600)
		require.ErrorIs(t, err, unix.EROFS)

		claim.ReadOnly = false
		fails(t, d.Publish(t.Context(), claim), codes.AlreadyExists, "readonly")
	}
}

func TestEphemeralRefusals(t *testing.T) {
	namespace.NeedRoot(t)

	blocked := func(c *csiclient.Publication) { c.Capability = csiclient.BlockCapability(writer) }
	with := func(key, value string) func(*csiclient.Publication) {
		return func(c *csiclient.Publication) { c.VolumeContext[key] = value }
	}
	named := func(id string) func(*csiclient.Publication) {
		return func(c *csiclient.Publication) { c.VolumeID = id }
	}

	for name, test := range map[string]struct {
		change func(*csiclient.Publication)
		code   codes.Code
		words  []string
	}{
		"block access":       {blocked, codes.InvalidArgument, []string{"block"}},
		"no capability":      {func(c *csiclient.Publication) { c.Capability = nil }, codes.InvalidArgument, []string{"volume_capability"}},
		"several nodes":      {func(c *csiclient.Publication) { c.Capability = csiclient.MountCapability(nodesWrite, "") }, codes.InvalidArgument, []string{"MULTI_NODE"}},
		"unknown attribute":  {with("colour", "blue"), codes.InvalidArgument, []string{"colour"}},
		"unknown pool":       {with("pool", "../../etc"), codes.InvalidArgument, []string{"pool", "default"}},
		"unknown filesystem": {with("csi.storage.k8s.io/fstype", "ntfs"), codes.InvalidArgument, []string{"ntfs"}},
		"mkfs option":        {with("mkfsOptions", "-d /etc"), codes.InvalidArgument, []string{"mkfsOptions"}},
		"size of words":      {with("size", "large"), codes.InvalidArgument, []string{"size", "large"}},
		"size of nothing":    {with("size", "0"), codes.InvalidArgument, []string{"size"}},
		"negative size":      {with("size", "-1Gi"), codes.InvalidArgument, []string{"size"}},
		"endless size":       {with("size", "9223372036854775807"), codes.InvalidArgument, []string{"size"}},
		"more than the pool": {with("size", "800Ti"), codes.ResourceExhausted, []string{"default"}},
		"more than allowed":  {with("size", "2Gi"), codes.OutOfRange, []string{"--max-volume-size"}},
		"a flag":             {func(c *csiclient.Publication) { c.Capability = csiclient.MountCapability(writer, "", "bind") }, codes.InvalidArgument, []string{"bind"}},
		"a flag's refusal":   {func(c *csiclient.Publication) { c.Capability = csiclient.MountCapability(writer, "", "nonsense") }, codes.InvalidArgument, []string{"nonsense"}},
		"target outside":     {func(c *csiclient.Publication) { c.TargetPath = "/etc/passwd.d" }, codes.InvalidArgument, nil},
		"no id":              {named(""), codes.InvalidArgument, []string{"volume_id"}},
		"an id with a path":  {named("../../images/x"), codes.InvalidArgument, []string{"volume_id"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := harness.Start(t, func(c *driver.Config) {
				if test.code == codes.OutOfRange {
					c.MaxVolumeBytes = 1 << 30
				}
			})
			claim := inlineClaim(t, d, small())
			target := claim.TargetPath
			require.NoError(t, os.MkdirAll(filepath.Dir(target), 0o750))

			asked := *claim
			test.change(&asked)
			_, err := d.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
				VolumeId: asked.VolumeID, TargetPath: asked.TargetPath, VolumeCapability: asked.Capability,
				VolumeContext: asked.VolumeContext,
			})
			fails(t, err, test.code, test.words...)
			require.NoDirExists(t, target)
			require.Empty(t, contents(t, d))
		})
	}
}

// TestEphemeralIDIsOnlyAName takes ids that a pool's own could be confused with.
func TestEphemeralIDIsOnlyAName(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t)
	volume := newVolume(t, d, &csi.CreateVolumeRequest{Parameters: directoryBacked()})
	bringUp(t, d, volume)
	writeFile(t, filepath.Join(volume.TargetPath, "data"), "kept")

	for _, id := range []string{volume.VolumeID, "images", "-rf", "csi-" + strings.Repeat("é", 30), "a b;c$(d)"} {
		claim := inlineClaim(t, d, small())
		claim.VolumeID = id
		require.NoError(t, d.Publish(t.Context(), claim), id)
		require.NoFileExists(t, filepath.Join(claim.TargetPath, "data"))

		held := contents(t, d)
		require.Len(t, held, 1)
		require.NotContains(t, held[0], id)
		require.NoError(t, d.Unpublish(t.Context(), claim), id)
		gone(t, d, claim)
	}

	fileHolds(t, filepath.Join(volume.TargetPath, "data"), "kept")
}

func TestEphemeralConflicts(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t)
	claim := inlineClaim(t, d, small())
	require.NoError(t, d.Publish(t.Context(), claim))

	for name, change := range map[string]func(*csiclient.Publication){
		"size":       func(c *csiclient.Publication) { c.VolumeContext["size"] = "32Mi" },
		"filesystem": func(c *csiclient.Publication) { c.Capability = csiclient.MountCapability(writer, "xfs") },
		"mode":       func(c *csiclient.Publication) { c.Capability = csiclient.MountCapability(multiWriter, "") },
		"readonly":   func(c *csiclient.Publication) { c.ReadOnly = true },
	} {
		other := *claim
		other.VolumeContext = maps.Clone(claim.VolumeContext)
		change(&other)
		require.Equal(t, codes.AlreadyExists.String(), codeOf(d.Publish(t.Context(), &other)), name)
	}

	// What the CO says of the pod is no part of the volume.
	again := *claim
	again.VolumeContext = maps.Clone(claim.VolumeContext)
	again.VolumeContext["csi.storage.k8s.io/pod.name"] = "renamed"
	require.NoError(t, d.Publish(t.Context(), &again))

	fails(t, d.Publish(t.Context(), another(claim, "elsewhere")), codes.FailedPrecondition, claim.TargetPath)

	// Two volumes, two pods: nothing is shared.
	second := inlineClaim(t, d, small())
	require.NoError(t, d.Publish(t.Context(), second))
	writeFile(t, filepath.Join(second.TargetPath, "data"), "second")
	require.NoFileExists(t, filepath.Join(claim.TargetPath, "data"))
	require.NoError(t, d.Unpublish(t.Context(), claim))
	fileHolds(t, filepath.Join(second.TargetPath, "data"), "second")

	// A target that another volume uses.
	third := inlineClaim(t, d, small())
	third.TargetPath = second.TargetPath
	fails(t, d.Publish(t.Context(), third), codes.FailedPrecondition)
	require.NoError(t, d.Unpublish(t.Context(), third))
	fileHolds(t, filepath.Join(second.TargetPath, "data"), "second")
}

// TestEphemeralAfterAReboot takes mounts away as a reboot does.
func TestEphemeralAfterAReboot(t *testing.T) {
	namespace.NeedRoot(t)

	for _, backing := range []string{"image", "directory"} {
		t.Run(backing, func(t *testing.T) {
			d := harness.Start(t)
			claim := inlineClaim(t, d, map[string]string{"size": "16Mi", "backing": backing})
			require.NoError(t, d.Publish(t.Context(), claim))
			writeFile(t, filepath.Join(claim.TargetPath, "data"), "before")

			d.Stop()
			unmount(t, claim.TargetPath)
			require.Len(t, contents(t, d), 1)
			d.Restart(t)
			gone(t, d, claim)

			// Its space is no longer provisioned, and the pod starts afresh.
			require.NoError(t, d.Publish(t.Context(), claim))
			require.NoFileExists(t, filepath.Join(claim.TargetPath, "data"))

			// Behind the driver's back while it runs.
			unmount(t, claim.TargetPath)
			require.NoError(t, d.Publish(t.Context(), claim))
			require.Len(t, contents(t, d), 1)
			unmount(t, claim.TargetPath)
			require.NoError(t, d.Unpublish(t.Context(), claim))
			gone(t, d, claim)
		})
	}
}

// TestEphemeralWithoutRecords loses the state directory.
func TestEphemeralWithoutRecords(t *testing.T) {
	namespace.NeedRoot(t)

	for _, backing := range []string{"image", "directory"} {
		t.Run(backing, func(t *testing.T) {
			d := harness.Start(t)
			claim := inlineClaim(t, d, map[string]string{"size": "16Mi", "backing": backing})
			require.NoError(t, d.Publish(t.Context(), claim))

			d.Stop()
			require.NoError(t, os.RemoveAll(d.Config.StateDir))
			d.Restart(t)
			require.NoError(t, d.Unpublish(t.Context(), claim))
			require.Empty(t, contents(t, d))
		})
	}
}

// TestEphemeralTakesPartInThePromise lets both kinds of volumes share a pool of
// 256 MiB, which none of them gets twice.
func TestEphemeralTakesPartInThePromise(t *testing.T) {
	namespace.NeedRoot(t)

	d := smallPool(t, 256*mib)
	inline := func(size string) *csiclient.Publication {
		return inlineClaim(t, d, map[string]string{"size": size, "backing": "directory"})
	}
	create := func(name string, bytes int64) error {
		_, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: name, Parameters: directoryBacked(), CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
			VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(writer, "")},
		})

		return err
	}

	first := inline("128Mi")
	require.NoError(t, d.Publish(t.Context(), first))

	capacity, err := d.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	require.NoError(t, err)
	require.InDelta(t, 128*mib, capacity.GetAvailableCapacity(), identityBytes)

	fails(t, create("too large", 129*mib), codes.ResourceExhausted)
	fails(t, d.Publish(t.Context(), inline("129Mi")), codes.ResourceExhausted, "default")
	require.NoError(t, create("fits", 96*mib))

	second := inline("48Mi")
	fails(t, d.Publish(t.Context(), second), codes.ResourceExhausted)
	d.Restart(t)
	fails(t, d.Publish(t.Context(), second), codes.ResourceExhausted)
	require.NoError(t, d.Unpublish(t.Context(), first))
	require.NoError(t, d.Publish(t.Context(), second))
	require.NoError(t, d.Unpublish(t.Context(), second))
}

func codeOf(err error) string { return status.Code(err).String() }

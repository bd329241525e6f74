package ctl_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/ctl"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// TestUmountFindsTheMount by a name, id or path, and keeps other mounts.
func TestUmountFindsTheMount(t *testing.T) {
	driver := &reporting{report: health.Report{Volumes: []health.VolumeReport{
		{ID: "volume-1", Name: "data", Staged: "/stage/1", Published: []string{"/mnt/data"}},
		{ID: "volume-2", Name: "often", Staged: "/stage/2", Published: []string{"/mnt/a", "/mnt/b"}},
		{ID: "volume-3", Name: "left", Staged: "/mnt/.touchstone-volume-3"},
		{ID: "volume-4", Name: "staged", Staged: "/stage/4"},
		{ID: "volume-5", Name: "unused"},
	}}}

	for name, test := range map[string]struct {
		given, says string
		// unpublished is the path of NodeUnpublishVolume, unstaged that of NodeUnstageVolume.
		unpublished, unstaged string
	}{
		"by name":                {given: "data", says: "data is unmounted from /mnt/data", unpublished: "/mnt/data", unstaged: "/stage/1"},
		"by id":                  {given: "volume-1", says: "data is unmounted from /mnt/data", unpublished: "/mnt/data", unstaged: "/stage/1"},
		"by path":                {given: "/mnt/data", says: "data is unmounted from /mnt/data", unpublished: "/mnt/data", unstaged: "/stage/1"},
		"one of two":             {given: "/mnt/b", says: "often is unmounted from /mnt/b", unpublished: "/mnt/b"},
		"what umount has left":   {given: "left", says: "left is unmounted from", unstaged: "/mnt/.touchstone-volume-3"},
		"of two":                 {given: "often", says: "it is mounted at several paths; name one: /mnt/a, /mnt/b"},
		"staged by another":      {given: "staged", says: "it is not mounted"},
		"not in use":             {given: "volume-5", says: "it is not mounted"},
		"a path of no mount":     {given: "/mnt/c", says: "no volume has this name or id, or is mounted at this path"},
		"a name that is unknown": {given: "none", says: "no volume has this name or id"},
	} {
		t.Run(name, func(t *testing.T) {
			fake, endpoint := startFake(t, driver.register)

			out, err := run(t, "volume", "umount", test.given, "--endpoint", endpoint)
			if test.unpublished+test.unstaged == "" {
				errtext.Require(t, err, test.says)
			} else {
				require.NoError(t, err)
				require.Contains(t, out, test.says)
			}

			var unpublished, unstaged []string
			for _, each := range requests[*csi.NodeUnpublishVolumeRequest](fake) {
				unpublished = append(unpublished, each.GetTargetPath())
			}

			for _, each := range requests[*csi.NodeUnstageVolumeRequest](fake) {
				unstaged = append(unstaged, each.GetStagingTargetPath())
			}

			require.Equal(t, test.unpublished, strings.Join(unpublished, " "), "the path of NodeUnpublishVolume")
			require.Equal(t, test.unstaged, strings.Join(unstaged, " "), "the path of NodeUnstageVolume")
		})
	}
}

// TestUmountOfAPublishWithoutPaths names the command that undoes it.
func TestUmountOfAPublishWithoutPaths(t *testing.T) {
	driver := &reporting{report: health.Report{Volumes: []health.VolumeReport{{ID: "volume-1", Name: "data"}}}}
	_, endpoint := startFake(t, driver.register)

	for _, verb := range []string{"umount", "unpublish"} {
		_, err := run(t, "volume", verb, "data", "--endpoint", endpoint)
		errtext.Require(t, err, "it is not mounted as far as the driver reports, but attached to node-a; with the paths of its publish, "+
			"touchstone ctl volume unpublish data --node node-a --staging PATH --target PATH undoes that")
	}
}

// TestMountRefusesToHideFiles, and refuses flags of a volume that is not made.
func TestMountRefusesToHideFiles(t *testing.T) {
	full := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(full, "file"), nil, 0o600))

	driver := &reporting{report: health.Report{Volumes: []health.VolumeReport{
		{ID: "volume-1", Name: "raw", Backing: "image"}, {ID: "volume-2", Name: "recorded", FSType: "xfs", Backing: "image", Published: []string{full}},
	}}}

	for name, test := range map[string]struct {
		args []string
		says string
		code int
	}{
		"files":               {[]string{"volume-1", full}, "its files would be hidden", 1},
		"files of a lost one": {[]string{"volume-2", full}, "its files would be hidden", 1},
		"size":                {[]string{"volume-1", filepath.Join(full, "new"), "--size", "1Gi"}, "are for --create", 2},
		"a filesystem":        {[]string{"volume-1", filepath.Join(full, "new"), "--fs", "xfs"}, "raw: it is a raw block volume", 1},
	} {
		t.Run(name, func(t *testing.T) {
			fake, endpoint := startFake(t, driver.register)

			_, err := run(t, append([]string{"volume", "mount", "--endpoint", endpoint}, test.args...)...)
			errtext.Require(t, err, test.says)
			require.Equal(t, test.code, ctl.ExitCode(err), "want: the exit code of this failure")
			require.Empty(t, requests[*csi.NodePublishVolumeRequest](fake), "want: nothing is mounted")
		})
	}
}

// TestPersistNeedsTouchstone: with a driver of another kind the volume is mounted, and not said to be persistent.
func TestPersistNeedsTouchstone(t *testing.T) {
	driver := &reporting{report: health.Report{Volumes: []health.VolumeReport{{ID: "volume-1", FSType: "ext4", Backing: "image"}}}}
	fake, endpoint := startFake(t, driver.register)
	path := filepath.Join(t.TempDir(), "data")

	out, err := run(t, "volume", "mount", "volume-1", path, "--persist", "--endpoint", endpoint)
	errtext.Require(t, err, "the volume is mounted, but no start of the driver mounts it again")
	require.Equal(t, 1, ctl.ExitCode(err), "want: what was asked for is not done")
	require.NotContains(t, out, "is mounted", "want: no word of success")
	require.Len(t, requests[*csi.NodePublishVolumeRequest](fake), 1, "want: the volume is mounted")
}

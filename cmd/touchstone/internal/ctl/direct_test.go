package ctl_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/ctl"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

func TestDirectVolumesPrintsATable(t *testing.T) {
	driver, endpoint := startAssigning(t)

	out, err := run(t, "direct-volumes", "list", "--endpoint", endpoint)
	require.NoError(t, err)
	require.Equal(t, `
VOLUME    TARGET                 DEVICE         FS     SIZE     PENDING  OPTIONS        SANDBOX
volume-1  /kubelet/pods/a/mount  /dev/loop1024  ext4   2.0 GiB  2.0 GiB  noatime,nodev  0af3
volume-2  /kubelet/pods/b/mount  /dev/loop1025  xfs    300 MiB  -        ro             -
volume-3  /kubelet/pods/c/mount  /dev/loop1026  btrfs  1.0 GiB  -        -              -
`, "\n"+out)

	driver.listed = nil

	out, err = run(t, "direct-volumes", "list", "--endpoint", endpoint)
	require.NoError(t, err)
	require.Equal(t, "VOLUME  TARGET  DEVICE  FS  SIZE  PENDING  OPTIONS  SANDBOX\n", out)
}

func TestDirectVolumesPrintsJSON(t *testing.T) {
	driver, endpoint := startAssigning(t)

	out, err := run(t, "direct-volumes", "list", "-o", "json", "--endpoint", endpoint)
	require.NoError(t, err)

	var document struct {
		Volumes []kata.AssignedVolume `json:"directVolumes"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &document))
	require.Equal(t, driver.listed, document.Volumes)

	driver.listed = nil

	out, err = run(t, "direct-volumes", "list", "-o", "json", "--endpoint", endpoint)
	require.NoError(t, err)
	require.JSONEq(t, `{"directVolumes": []}`, out)
}

func TestDirectVolumesListFails(t *testing.T) {
	_, other := startFake(t)
	driver, failing := startAssigning(t)
	driver.err = status.Error(codes.Unavailable, "the direct-volume root can't be read")

	for name, test := range map[string]struct {
		args []string
		code int
		says string
	}{
		"another driver":               {[]string{"list", "--endpoint", other}, 1, "lists no direct volumes: it is not Touchstone"},
		"a driver that can't read":     {[]string{"list", "--endpoint", failing}, 1, "UNAVAILABLE: the direct-volume root can't be read"},
		"a driver that is not there":   {[]string{"list", "--endpoint", "unix:///nowhere/csi.sock"}, 1, "UNAVAILABLE"},
		"an argument too many":         {[]string{"list", "volume-1"}, 2, "one argument too many"},
		"a subcommand that is not one": {[]string{"lst"}, 2, `unknown command "lst"`},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := run(t, append([]string{"direct-volumes"}, test.args...)...)
			errtext.Require(t, err, test.says)
			require.Equal(t, test.code, ctl.ExitCode(err), "want: the exit code is the one of this failure")
			require.Empty(t, out, "want: nothing is printed beside the error")
		})
	}
}

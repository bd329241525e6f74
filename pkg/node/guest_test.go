package node_test

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// TestDirectVolumeHasTheGuestsUsage is that of a direct volume: what its guest reports, or else the
// size of its device.
func TestDirectVolumeHasTheGuestsUsage(t *testing.T) {
	n := newNode(t, "direct")
	answers := n.in("answer")
	n.runtime = n.in("runtime")
	require.NoError(t, os.WriteFile(n.runtime, []byte("#!/bin/sh\ncat "+answers+"\n"), 0o700))
	require.NoError(t, n.restart(t.Context()))
	require.NoError(t, n.stage(t.Context()))

	device := []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: onceBytes}}

	read := func(name string) (*csi.NodeGetVolumeStatsResponse, error) {
		return n.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: n.kind.id(), VolumePath: n.in("kubelet/" + name)})
	}
	requireUsage := func(name string, want []*csi.VolumeUsage, unavailable bool, when string) {
		t.Helper()

		got, err := read(name)
		require.NoError(t, err, when)
		require.Equal(t, fmt.Sprint(want), fmt.Sprint(got.GetUsage()), when)

		message := ""
		if len(got.ProtoReflect().GetUnknown()) > 0 {
			_, message = harness.ConditionIn(t, got)
		}

		require.Equal(t, unavailable, strings.Contains(message, string(health.GuestStatsUnavailable)), "the condition when %s: %s", when, message)
	}

	requireUsage("staging", device, false, "staged")
	require.NoError(t, n.publish(t.Context()))
	requireUsage("target", device, true, "no sandbox has the volume")

	entry := filepath.Join(n.in("kata"), base64.URLEncoding.EncodeToString([]byte(n.in("kubelet/target"))))
	require.NoError(t, os.WriteFile(filepath.Join(entry, "sandbox"), nil, 0o600))

	require.NoError(t, os.WriteFile(answers, []byte(`{"usage":[{"unit":1,"total":16000000,"used":3,"available":4},{"unit":2,"total":9,"used":5,"available":4}]}`), 0o600))
	requireUsage("target", []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: 16_000_000, Used: 3, Available: 4}, {Unit: csi.VolumeUsage_INODES, Total: 9, Used: 5, Available: 4},
	}, false, "the guest answers")

	require.NoError(t, os.Remove(answers))
	requireUsage("target", device, true, "the guest does not answer")

	require.NoError(t, os.WriteFile(answers, []byte(`{"usage":[{"unit":1,"total":16777217}]}`), 0o600))
	requireUsage("target", device, true, "more than the device has is no answer")

	require.NoError(t, n.unpublish(t.Context()))
	requireUsage("staging", device, false, "no guest has it any more")

	_, err := read("target")
	rpccode.Require(t, err, codes.NotFound)
	require.NoError(t, n.unstage(t.Context()))
}

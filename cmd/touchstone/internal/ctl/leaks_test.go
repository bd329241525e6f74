package ctl_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/ctl"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// TestLeaksNamesWhatIsLeftAndTheMissingCall of a volume in use, one that is attached elsewhere, and snapshots.
func TestLeaksNamesWhatIsLeftAndTheMissingCall(t *testing.T) {
	_, endpoint := startComplete(t, 0)

	out, err := run(t, "leaks", "--endpoint", endpoint)
	errtext.Require(t, err, "left objects behind")
	require.Equal(t, 1, ctl.ExitCode(err), "want: a leak fails the command")

	for _, row := range []string{
		`publication +data +volume-1 +/mnt/data +NodeUnpublishVolume`, `staging +data +volume-1 +/\S+ +NodeUnstageVolume`,
		`attachment +data +volume-1 +node-b +ControllerUnpublishVolume`, `volume +raw +volume-2 +- +DeleteVolume`,
		`snapshot +- +snapshot-2 +group both +DeleteVolumeGroupSnapshot`,
	} {
		require.Regexp(t, row, out)
	}

	out, err = run(t, "leaks", "-o", "json", "--endpoint", endpoint)
	require.Error(t, err, "want: a leak fails the command")

	var found []map[string]string

	require.NoError(t, json.Unmarshal([]byte(out), &found))
	require.Equal(t, map[string]string{
		"kind": "publication", "id": "volume-1", "name": "data", "at": "/mnt/data", "made": "NodePublishVolume", "missing": "NodeUnpublishVolume",
	}, found[0])
}

// TestUnknownLeaksAreAnError: a driver that makes what it does not list, or that does not report its volumes.
func TestUnknownLeaksAreAnError(t *testing.T) {
	_, endpoint := startFake(t)
	_, err := run(t, "leaks", "--endpoint", endpoint)
	errtext.Require(t, err, "does not report the volumes in use")

	_, endpoint = startReporting(t)
	_, err = run(t, "leaks", "--endpoint", endpoint)
	errtext.Require(t, err, "LIST_VOLUMES")
}

// starting is a driver that is ready at the third Probe.
type starting struct {
	*fake

	probes atomic.Int32
}

func (s *starting) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(s.probes.Add(1) > 2)}, nil
}

// TestWaitIsForADriverThatIsStarting, and no longer than it says.
func TestWaitIsForADriverThatIsStarting(t *testing.T) {
	t.Parallel()

	socket := filepath.Join(t.TempDir(), "csi.sock")
	endpoint := "unix://" + socket

	_, err := run(t, "node", "info", "--wait", "50ms", "--endpoint", endpoint)
	errtext.Require(t, err, "wait until the driver is ready")
	errtext.Require(t, err, "is the driver running?")

	ended := make(chan error, 1)

	go func() {
		_, err := run(t, "node", "info", "--wait", "1m", "--endpoint", endpoint)
		ended <- err
	}()

	driver := &starting{fake: newFake()}
	serveFakeAt(t, socket, driver.fake, driver)
	require.NoError(t, await.Receive(t, ended, "the command to reach the driver"))
	require.EqualValues(t, 3, driver.probes.Load(), "want: the command waits until the driver is ready")
}

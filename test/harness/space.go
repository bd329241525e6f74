package harness

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
)

// StateSpace is a small filesystem for the state of a driver.
type StateSpace struct{ directory, ballast string }

// NewStateSpace mounts the filesystem.
func NewStateSpace(t *testing.T) *StateSpace {
	t.Helper()

	directory := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", directory, "tmpfs", 0, "size=4m"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(directory, unix.MNT_DETACH)) })

	return &StateSpace{directory, filepath.Join(directory, "ballast")}
}

// Option puts the state into the filesystem.
func (s *StateSpace) Option(c *driver.Config) { c.StateDir = filepath.Join(s.directory, "state") }

// Fill fills the filesystem, and returns when the state is read-only: the journal is preallocated, so
// changes go on for a while.
func (s *StateSpace) Fill(t *testing.T, d *Driver) {
	t.Helper()
	require.ErrorIs(t, os.WriteFile(s.ballast, make([]byte, 8*MiB), 0o600), unix.ENOSPC)

	var failure error

	for range 20_000 {
		request := &csi.CreateVolumeRequest{
			Name: "filler", VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(Writer)},
			Parameters: map[string]string{"backing": "image"},
		}

		made, err := d.CreateVolume(t.Context(), request)
		if err == nil {
			_, err = d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: made.GetVolume().GetVolumeId()})
		}

		if failure = err; failure != nil {
			break
		}
	}

	RequireCode(t, failure, codes.Unavailable, "no space", "free some")
}

// Free frees the space that Fill has taken.
func (s *StateSpace) Free(t *testing.T) {
	t.Helper()
	require.NoError(t, os.Remove(s.ballast))
}

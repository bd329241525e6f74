package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/awaitcall"
	"github.com/touchstone-csi/touchstone/test/child"
)

// stopped is a driver that has served and ended, and its volumes.
type stopped struct {
	dir string
	// never was not attached, used was; the others are used, too.
	never, used, directory, snapshot string
}

func (s *stopped) pool(t *testing.T, parts ...string) string {
	t.Helper()

	return filepath.Join(append([]string{s.dir, "pool"}, parts...)...)
}

func (s *stopped) flags(extra ...string) []string {
	return append([]string{"--state-dir", filepath.Join(s.dir, "state"), "--pool", "default=" + filepath.Join(s.dir, "pool")}, extra...)
}

// state runs `touchstone state` with a verb.
func (s *stopped) state(verb string, extra ...string) (code int, said string) {
	code, out, problems := touchstone(append([]string{"state", verb}, s.flags(extra...)...)...)

	return code, out + problems
}

// during calls do while a driver serves, which then ends as the signal says.
func (s *stopped) during(t *testing.T, end syscall.Signal, do func(client *csiclient.Client), args ...string) {
	t.Helper()

	command, lines := startProcess(t, s.dir, args...)
	awaitLine(t, lines, "msg=ready")

	client, err := csiclient.Connect("unix://"+filepath.Join(s.dir, "csi.sock"), awaitcall.Options(t)...)
	require.NoError(t, err)
	do(client)
	require.NoError(t, client.Close())
	require.NoError(t, command.Process.Signal(end))

	awaitLast(t, lines)

	require.Equal(t, end == syscall.SIGTERM, child.Wait(t, command) == nil, "want: the driver exits with 0 after SIGTERM only")
}

func serveAndStop(t *testing.T) *stopped {
	t.Helper()

	s := &stopped{dir: t.TempDir()}
	s.during(t, syscall.SIGTERM, func(client *csiclient.Client) {
		s.never = createVolume(t, client, "never", nil)
		s.used = createVolume(t, client, "used", nil)
		s.directory = createVolume(t, client, "directory", map[string]string{"backing": "directory"})

		// The raw device of an image may be written: it is not pristine any more.
		for id, capability := range map[string]*csi.VolumeCapability{
			s.used: csiclient.BlockCapability(writer), s.directory: csiclient.MountCapability(writer, ""),
		} {
			claim := &csiclient.Publication{VolumeID: id, NodeID: "here", Capability: capability}
			require.NoError(t, client.Attach(t.Context(), claim))
			require.NoError(t, client.Detach(t.Context(), claim))
		}

		cut, err := client.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: s.used})
		require.NoError(t, err)
		require.True(t, cut.GetSnapshot().GetReadyToUse(), "want: the snapshot is ready to use")

		s.snapshot = cut.GetSnapshot().GetSnapshotId()
	}, "--node-id=here")

	return s
}

const writer = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER

func createVolume(t *testing.T, client *csiclient.Client, name string, parameters map[string]string) string {
	t.Helper()

	made, err := client.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: name, Parameters: parameters, CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 20},
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(writer, "")},
	})
	require.NoError(t, err)

	return made.GetVolume().GetVolumeId()
}

func put(t *testing.T, path, content string) string {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))

	return path
}

func putDirectory(t *testing.T, path string) string {
	t.Helper()
	require.NoError(t, os.Mkdir(path, 0o700))

	return path
}

func newID(t *testing.T) string {
	t.Helper()

	id, err := uuid.NewV7()
	require.NoError(t, err)

	return id.String()
}

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/await"
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

// during calls do while a driver serves, in this process, which then drains.
func (s *stopped) during(t *testing.T, do func(client *csiclient.Client), args ...string) {
	t.Helper()

	stop, lines, ended := startHere(t, s.dir, args...)
	s.call(t, lines, do)
	stop()
	awaitLast(t, lines)
	require.NoError(t, await.Receive(t, ended, "the end of the driver"))
}

// call calls do when the driver is ready.
func (s *stopped) call(t *testing.T, lines <-chan string, do func(client *csiclient.Client)) {
	t.Helper()
	awaitLine(t, lines, "msg=ready")

	client, err := csiclient.Connect("unix://"+filepath.Join(s.dir, "csi.sock"), awaitcall.Options(t)...)
	require.NoError(t, err)
	do(client)
	require.NoError(t, client.Close())
}

// untilKilled calls do while a process of its own serves, which then is killed.
func (s *stopped) untilKilled(t *testing.T, do func(client *csiclient.Client), args ...string) {
	t.Helper()

	command, lines := startProcess(t, s.dir, args...)
	s.call(t, lines, do)
	require.NoError(t, command.Process.Kill())
	awaitLast(t, lines)
	require.Error(t, child.Wait(t, command), "the exit of a driver that was killed")
}

func serveAndStop(t *testing.T) *stopped {
	t.Helper()

	s := &stopped{dir: t.TempDir()}
	s.during(t, func(client *csiclient.Client) {
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

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/awaitcall"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// hostpathplugin is a process of the program of that name.
type hostpathplugin struct {
	command *exec.Cmd
	lines   <-chan string
}

func startHostpathplugin(t *testing.T, directory string, args ...string) *hostpathplugin {
	t.Helper()

	self, err := os.Executable()
	require.NoError(t, err)

	program := filepath.Join(t.TempDir(), hostpathProgram)
	require.NoError(t, os.Symlink(self, program))

	h := &hostpathplugin{command: exec.CommandContext(t.Context(), program, args...)}
	h.command.Env = append(os.Environ(), asTouchstone+"=1", "TOUCHSTONE_SIMULATE_NODE=true", "TOUCHSTONE_STRICT=observe")
	h.command.Dir = directory
	h.lines = startCommand(t, h.command)

	return h
}

// end ends the process, which says the part of a line then.
func (h *hostpathplugin) end(t *testing.T, says string) {
	t.Helper()
	require.NoError(t, h.command.Process.Signal(syscall.SIGTERM))

	if says != "" {
		awaitLine(t, h.lines, says)
	}

	awaitLast(t, h.lines)
	require.NoError(t, child.Wait(t, h.command))
}

// TestHostpathpluginServes has two drivers on one directory, one after the other and with an end between:
// the volume is there again, and nothing is left when it is deleted.
func TestHostpathpluginServes(t *testing.T) {
	t.Parallel()

	directory := t.TempDir()
	data, endpoint := filepath.Join(directory, "data"), filepath.Join(directory, "csi.sock")
	start := func() (*hostpathplugin, *csiclient.Client) {
		h := startHostpathplugin(t, directory, "-drivername=a.example", "--v=5", "-endpoint", endpoint, "--nodeid=n", "--statedir="+data)
		awaitLine(t, h.lines, "msg=ready")

		client, err := csiclient.Connect("unix://"+endpoint, awaitcall.Options(t)...)
		require.NoError(t, err)
		t.Cleanup(func() { _ = client.Close() })

		return h, client
	}

	require.NoError(t, os.MkdirAll(filepath.Join(data, "b.example"), 0o700))

	first, client := start()
	info, err := client.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"topology.hostpath.csi/node": "n"}, info.GetAccessibleTopology().GetSegments())

	request := &csi.CreateVolumeRequest{
		Name: "a", Parameters: map[string]string{"color": "red"}, AccessibilityRequirements: &csi.TopologyRequirement{
			Requisite: []*csi.Topology{info.GetAccessibleTopology()},
		},
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "")},
	}
	made, err := client.CreateVolume(t.Context(), request)
	require.NoError(t, err)
	require.Equal(t, "red", made.GetVolume().GetVolumeContext()["color"])
	require.Equal(t, "directory", made.GetVolume().GetVolumeContext()["backing"])
	awaitLine(t, first.lines, `gRPCCall: {"Method":"/csi.v1.Controller/CreateVolume"`)
	first.end(t, "no call violates the CSI spec")
	require.DirExists(t, filepath.Join(data, "a.example"), "want: a driver with a volume keeps its directory")

	second, client := start()
	again, err := client.CreateVolume(t.Context(), request)
	require.NoError(t, err)
	require.Equal(t, made.GetVolume().GetVolumeId(), again.GetVolume().GetVolumeId())

	_, err = client.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: made.GetVolume().GetVolumeId()})
	require.NoError(t, err)
	// It is not advertised.
	_, err = client.ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{
		VolumeId: made.GetVolume().GetVolumeId(), MutableParameters: map[string]string{"a": "b"},
	})
	rpccode.Require(t, err, codes.Unimplemented)
	second.end(t, "it violates the CSI spec")
	require.NoDirExists(t, filepath.Join(data, "a.example"), "want: a driver without volumes leaves no directory")
	require.DirExists(t, filepath.Join(data, "b.example"), "want: that of another driver stays")
}

// TestHostpathpluginForwards joins connections to its socket with those to a port of all addresses.
func TestHostpathpluginForwards(t *testing.T) {
	t.Parallel()

	directory := t.TempDir()
	h := startHostpathplugin(t, directory, "-v=5", "-endpoint="+filepath.Join(directory, "csi.sock"), "-proxy-endpoint=tcp://:0")
	awaitLine(t, h.lines, "[::]:")
	awaitLine(t, h.lines, "msg=ready")
	h.end(t, "")
	require.NoFileExists(t, filepath.Join(directory, "csi.sock"))
}

func TestHostpathFlagsThatMakeNoDriverEndTheProgram(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		args []string
		code int
		says string
	}{
		"version":         {[]string{"hostpath", "-version"}, exitGood, hostpathProgram + " "},
		"help":            {[]string{"hostpath", "--help"}, exitGood, "-drivername"},
		"no node":         {[]string{"hostpath"}, exitNotWell, "-nodeid"},
		"an unknown flag": {[]string{"hostpath", "-nodeid=n", "-none"}, exitNotWell, "-none"},
		"wrong name":      {[]string{"hostpath", "-nodeid=n", "-drivername=-"}, exitCannot, "driver-name"},
		"not loopback":    {[]string{"hostpath", "-nodeid=n", "-endpoint=tcp://192.0.2.1:1"}, exitCannot, "192.0.2.1"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, problems := touchstone(test.args...)
			require.Equal(t, test.code, code, out+problems)
			require.Contains(t, out+problems, test.says)
		})
	}

	require.Equal(t, []string{"hostpath", "-v=5"}, arguments([]string{"/hostpathplugin", "-v=5"}))
	require.Equal(t, []string{"-v=5"}, arguments([]string{"/usr/bin/touchstone", "-v=5"}))
	require.Empty(t, arguments(nil), "want: no line has no arguments")
}

// TestAPoolOfAnEarlierStartIsKept: what a driver without volumes removes may have those of a start with
// another capacity.
func TestAPoolOfAnEarlierStartIsKept(t *testing.T) {
	t.Parallel()

	directory := t.TempDir()
	data, endpoint := filepath.Join(directory, "data"), filepath.Join(directory, "csi.sock")
	own := filepath.Join(data, "a.example")
	run := func(capacity string, use func(client *csiclient.Client)) {
		h := startHostpathplugin(t, directory, "-drivername=a.example", "-endpoint", endpoint, "-nodeid=n", "-statedir="+data, "-capacity="+capacity)
		awaitLine(t, h.lines, "msg=ready")

		client, err := csiclient.Connect("unix://"+endpoint, awaitcall.Options(t)...)
		require.NoError(t, err)
		t.Cleanup(func() { _ = client.Close() })
		use(client)
		h.end(t, "")
	}

	var made string

	run("slow=1Gi", func(client *csiclient.Client) {
		answer, err := client.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: "a", Parameters: map[string]string{"kind": "slow"},
			VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "")},
		})
		require.NoError(t, err)

		made = answer.GetVolume().GetVolumeId()
	})
	run("fast=1Gi", func(*csiclient.Client) {})
	require.DirExists(t, filepath.Join(own, "pool-slow"), "want: the pool of the first start is kept")
	run("slow=1Gi", func(client *csiclient.Client) {
		_, err := client.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: made})
		require.NoError(t, err, "want: the volume is kept")
	})
	require.NoDirExists(t, own, "want: pools without volumes are removed, whatever the start that made them")
}

// TestOnlyAnUnusedDirectoryIsRemoved: one with a file that is not its own stays, also the image of a pool.
func TestOnlyAnUnusedDirectoryIsRemoved(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		entry string
		isDir bool
		used  bool
	}{
		"an empty directory": {"pool/ephemeral/images", true, false},
		"its identity":       {"pool/pool.json", false, false},
		"the locks":          {"pool/ephemeral/controller.lock", false, false},
		"the state":          {"state/state.jsonl", false, false},
		"an empty volume":    {"pool-a/directories/01890000-0000-7000-8000-000000000001", true, true},
		"an image":           {"pool/images/01890000-0000-7000-8000-000000000001.img", false, true},
		"an inline volume":   {"pool/ephemeral/images/01890000-0000-7000-8000-000000000001.img", false, true},
		"an embedded pool":   {"pool/pool.img", false, true},
		"a foreign file":     {"pool/removing/notes", false, true},
		"a file beside":      {"calls.jsonl", false, true},
	} {
		directory := filepath.Join(t.TempDir(), "a.example")
		path := filepath.Join(directory, test.entry)

		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))

		if test.isDir {
			require.NoError(t, os.Mkdir(path, 0o700))
		} else {
			require.NoError(t, os.WriteFile(path, nil, 0o600))
		}

		used, err := isUsed(directory, filepath.Join(directory, "state"))
		require.NoError(t, err)
		require.Equal(t, test.used, used, name)
	}

	_, err := isUsed(filepath.Join(t.TempDir(), "none"), "")
	require.ErrorIs(t, err, os.ErrNotExist, "want: what cannot be read is not unused")
}

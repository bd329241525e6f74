package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/orchestrator"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/namespace"
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
func (s *stopped) during(t *testing.T, end syscall.Signal, do func(client *orchestrator.Orchestrator), args ...string) {
	t.Helper()

	command, lines := startProcess(t, s.dir, args...)
	awaitLine(t, lines, "msg=ready")

	client, err := orchestrator.Connect("unix://"+filepath.Join(s.dir, "csi.sock"), await.Calls(t)...)
	require.NoError(t, err)
	do(client)
	require.NoError(t, client.Close())
	require.NoError(t, command.Process.Signal(end))

	awaitLast(t, lines)

	require.Equal(t, end == syscall.SIGTERM, child.Wait(t, command) == nil)
}

func serveAndStop(t *testing.T) *stopped {
	t.Helper()

	s := &stopped{dir: t.TempDir()}
	s.during(t, syscall.SIGTERM, func(client *orchestrator.Orchestrator) {
		s.never = createVolume(t, client, "never", nil)
		s.used = createVolume(t, client, "used", nil)
		s.directory = createVolume(t, client, "directory", map[string]string{"backing": "directory"})

		for _, id := range []string{s.used, s.directory} {
			claim := &orchestrator.Claim{VolumeID: id, NodeID: "here", Capability: orchestrator.Mount(writer, "")}
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

func createVolume(t *testing.T, client *orchestrator.Orchestrator, name string, parameters map[string]string) string {
	t.Helper()

	made, err := client.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: name, Parameters: parameters, CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 20},
		VolumeCapabilities: []*csi.VolumeCapability{orchestrator.Mount(writer, "")},
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

func TestStateIsComparedWithItsPools(t *testing.T) {
	t.Parallel()

	s := serveAndStop(t)

	code, said := s.state("verify")
	require.Zero(t, code, said)
	require.Contains(t, said, "0 findings")

	data := []string{
		put(t, s.pool(t, "images", newID(t)+".img"), "precious"),
		put(t, s.pool(t, "snapshots", newID(t)+".img"), "precious"),
		put(t, filepath.Join(putDirectory(t, s.pool(t, "directories", newID(t))), "file"), "precious"),
		putDirectory(t, s.pool(t, "snapshots", newID(t))),
		put(t, s.pool(t, "directories", newID(t)), "precious, and no directory"),
	}
	leftovers := []string{
		put(t, s.pool(t, "images", newID(t)+".img"), ""),
		putDirectory(t, s.pool(t, "directories", newID(t))),
		put(t, s.pool(t, "scratch", newID(t)+".img"), "half"),
		putDirectory(t, s.pool(t, "scratch", newID(t))),
	}
	foreign := put(t, s.pool(t, "images", "backup.img"), "precious")
	ephemeral := put(t, filepath.Join(putDirectory(t, s.pool(t, "ephemeral")), "file"), "a node's")

	// This one is made again when it is attached, that one is gone.
	require.NoError(t, os.Remove(s.pool(t, "images", s.never+".img")))

	lost := s.pool(t, "images", s.used+".img")
	require.NoError(t, os.Rename(lost, filepath.Join(s.dir, "moved")))

	before := tree(t, s.dir)
	code, said = s.state("verify")
	require.Equal(t, exitNotWell, code, said)
	require.Equal(t, before, tree(t, s.dir), "verify has changed something")

	for _, path := range append(append([]string{lost, foreign}, data...), leftovers...) {
		require.Contains(t, said, strings.TrimSuffix(path, "/file"))
	}

	require.NotContains(t, said, s.never)
	require.NotContains(t, said, ephemeral)
	require.Contains(t, said, "pool default in "+s.pool(t)+" was compared with the state: 10 findings")
	require.Regexp(t, data[0]+": the state does not know this volume's image; it takes [1-9][0-9]* bytes", said)

	code, said = s.state("repair")
	require.Equal(t, exitNotWell, code, said)

	for _, path := range append(data, foreign, ephemeral) {
		require.FileExists(t, strings.Replace(path, data[3], foreign, 1))
		require.NotContains(t, said, "removed: "+strings.TrimSuffix(path, "/file"))
	}

	require.DirExists(t, data[3])

	for _, path := range leftovers {
		require.Contains(t, said, "removed: "+path)
		require.NoFileExists(t, path)
		require.NoDirExists(t, path)
	}

	s.putRight(t, data, lost)
}

// putRight does what repair leaves to a person.
func (s *stopped) putRight(t *testing.T, data []string, lost string) {
	t.Helper()

	for _, path := range data {
		require.NoError(t, os.RemoveAll(strings.TrimSuffix(path, "/file")))
	}

	require.NoError(t, os.Rename(filepath.Join(s.dir, "moved"), lost))

	for _, verb := range []string{"verify", "repair", "dump"} {
		code, said := s.state(verb)
		require.Zero(t, code, said)
	}

	s.during(t, syscall.SIGTERM, func(client *orchestrator.Orchestrator) {
		for range 2 {
			claim := &orchestrator.Claim{VolumeID: s.never, NodeID: "here", Capability: orchestrator.Mount(writer, "")}
			require.NoError(t, client.Attach(t.Context(), claim))
			require.NoError(t, client.Detach(t.Context(), claim))
		}
	}, "--node-id=here")
	require.FileExists(t, s.pool(t, "images", s.never+".img"))
}

// tree lists the files in a directory.
func tree(t *testing.T, root string) []string {
	t.Helper()

	var found []string

	require.NoError(t, filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
		found = append(found, path+" "+info.ModTime().String())

		return err
	}))

	return found
}

func TestPoolsAreComparedAsJSON(t *testing.T) {
	t.Parallel()

	s := serveAndStop(t)
	orphan := put(t, s.pool(t, "images", newID(t)+".img"), strings.Repeat("x", 8192))

	code, out, problems := touchstone(append([]string{"state", "verify", "--json"}, s.flags()...)...)
	require.Equal(t, exitNotWell, code, problems)

	var report struct {
		Findings []any          `json:"findings"`
		Records  map[string]int `json:"records"`
		Pools    struct {
			Findings []struct {
				Kind  string `json:"kind"`
				Pool  string `json:"pool"`
				Path  string `json:"path"`
				Bytes int64  `json:"bytes"`
			} `json:"findings"`
		} `json:"pools"`
	}

	require.NoError(t, json.Unmarshal([]byte(out), &report))
	require.Empty(t, report.Findings)
	require.Equal(t, 3, report.Records["volumes"])
	require.Len(t, report.Pools.Findings, 1)
	require.Equal(t, "orphan", report.Pools.Findings[0].Kind)
	require.Equal(t, "default", report.Pools.Findings[0].Pool)
	require.Equal(t, orphan, report.Pools.Findings[0].Path)
	require.EqualValues(t, 8192, report.Pools.Findings[0].Bytes)
}

func TestWhatCannotBeCompared(t *testing.T) {
	t.Parallel()

	s := serveAndStop(t)
	empty, other := putDirectory(t, filepath.Join(s.dir, "empty")), putDirectory(t, filepath.Join(s.dir, "other"))
	put(t, filepath.Join(putDirectory(t, filepath.Join(s.dir, "unmounted")), "pool.img"), "an image")

	for name, test := range map[string]struct {
		args           []string
		verify, repair int
		says           string
	}{
		"no such pool":     {[]string{"--pool=x=" + filepath.Join(s.dir, "none")}, 2, 2, "none"},
		"no pool":          {[]string{"--pool=x=" + empty}, 2, 2, "it is no pool"},
		"no name":          {[]string{"--pool=" + empty}, 2, 2, "NAME=DIRECTORY"},
		"pool not mounted": {[]string{"--pool=x=" + filepath.Join(s.dir, "unmounted")}, 2, 2, "mount -o loop,discard"},
		"no state":         {[]string{"--state-dir=" + other}, 1, 2, "no state"},
	} {
		for verb, want := range map[string]int{"verify": test.verify, "repair": test.repair} {
			before := tree(t, s.pool(t, "images"))
			code, said := s.state(verb, test.args...)

			require.Equal(t, want, code, "%s: %s: %s", name, verb, said)
			require.Contains(t, said, test.says, name)
			require.Equal(t, before, tree(t, s.pool(t, "images")))
		}
	}
}

func TestPoolsInUseAreNotCompared(t *testing.T) {
	t.Parallel()

	s, other := serveAndStop(t), t.TempDir()

	s.during(t, syscall.SIGTERM, func(*orchestrator.Orchestrator) {
		for _, verb := range []string{"verify", "repair"} {
			for _, extra := range [][]string{nil, {"--state-dir", other}} {
				code, said := s.state(verb, extra...)
				require.Equal(t, exitCannot, code, said)
				require.Contains(t, said, "csi.sock")
			}
		}
	})

	require.FileExists(t, s.pool(t, "images", s.never+".img"))
}

func TestTheStateOfANodeTellsNothingOfPools(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	s := serveAndStop(t)
	node := &stopped{dir: t.TempDir()}
	node.during(t, syscall.SIGTERM, func(*orchestrator.Orchestrator) {}, "--mode=node", "--kubelet-dir", node.dir)

	for _, verb := range []string{"verify", "repair"} {
		code, said := s.state(verb, "--state-dir", filepath.Join(node.dir, "state"))
		require.Equal(t, exitCannot, code, said)
		require.Contains(t, said, "controller")
	}

	require.FileExists(t, s.pool(t, "images", s.never+".img"))
}

// TestEmbeddedPoolIsCompared: it stays mounted when the driver is killed.
func TestEmbeddedPoolIsCompared(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	s := &stopped{dir: t.TempDir()}
	serve := func(end syscall.Signal, do func(*orchestrator.Orchestrator)) {
		s.during(t, end, do, "--mode=all", "--kubelet-dir", s.dir, "--pool-image-size=320Mi")
	}

	serve(syscall.SIGKILL, func(client *orchestrator.Orchestrator) { createVolume(t, client, "volume", nil) })

	code, said := s.state("verify")
	require.Zero(t, code, said)
	require.Contains(t, said, s.pool(t, "mounted"))

	orphan := put(t, s.pool(t, "mounted", "images", newID(t)+".img"), "precious")
	code, said = s.state("verify")
	require.Equal(t, exitNotWell, code, said)
	require.Contains(t, said, orphan)
	require.NoError(t, os.Remove(orphan))

	serve(syscall.SIGTERM, func(*orchestrator.Orchestrator) {})

	code, said = s.state("verify")
	require.Equal(t, exitCannot, code, said)
	require.Contains(t, said, "not mounted")
}

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

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

	s.during(t, func(client *csiclient.Client) {
		for range 2 {
			claim := &csiclient.Publication{VolumeID: s.never, NodeID: "here", Capability: csiclient.MountCapability(writer, "")}
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
	require.Empty(t, report.Findings, "want: the state has no finding")
	require.Equal(t, 3, report.Records["volumes"], "want: the report counts all volumes")
	require.Len(t, report.Pools.Findings, 1, "want: the orphaned image is the only finding of the pools")
	require.Equal(t, "orphan", report.Pools.Findings[0].Kind)
	require.Equal(t, "default", report.Pools.Findings[0].Pool)
	require.Equal(t, orphan, report.Pools.Findings[0].Path)
	require.EqualValues(t, 8192, report.Pools.Findings[0].Bytes, "want: the finding has the size of the orphaned image")
}

func TestVerifyFailsWithoutThePool(t *testing.T) {
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
		"no directory":     {[]string{"--state-dir=" + filepath.Join(s.dir, "none")}, 2, 2, "no such file"},
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

// TestAnotherPoolIsReported: what is at the pool's path is another pool, or none that has
// an identity. It is not compared with the records, and repair removes nothing from it.
func TestAnotherPoolIsReported(t *testing.T) {
	t.Parallel()

	s, other := serveAndStop(t), serveAndStop(t)
	leftover := put(t, other.pool(t, "images", newID(t)+".img"), "")

	compare := func(verb string, extra ...string) (code int, out, said string) {
		code, out, problems := touchstone(append([]string{
			"state", verb, "--state-dir", filepath.Join(s.dir, "state"), "--pool", "default=" + other.pool(t),
		}, extra...)...)

		return code, out, out + problems
	}

	for _, identity := range []string{identityOf(t, other), ""} {
		if identity == "" {
			require.NoError(t, os.Remove(other.pool(t, "pool.json")))
		}

		code, out, said := compare("verify", "--json")
		require.Equal(t, exitNotWell, code, said)

		var report struct {
			Pools struct {
				Findings []struct {
					Kind   string `json:"kind"`
					Pool   string `json:"pool"`
					Path   string `json:"path"`
					Reason string `json:"reason"`
					Advice string `json:"advice"`
				} `json:"findings"`
			} `json:"pools"`
		}

		require.NoError(t, json.Unmarshal([]byte(out), &report))
		require.Len(t, report.Pools.Findings, 1, "findings of a pool with the identity %q: %s", identity, out)

		found := report.Pools.Findings[0]
		require.Equal(t, "mismatch", found.Kind)
		require.Equal(t, "default", found.Pool)
		require.Equal(t, other.pool(t), found.Path)
		require.Contains(t, found.Reason, identityOf(t, s))
		require.Contains(t, found.Reason, strconv.Quote(identity))
		require.Contains(t, found.Advice, "touchstone state forget-pool default")

		before := tree(t, other.pool(t, "images"))
		code, _, said = compare("repair")
		require.Equal(t, exitNotWell, code, said)
		require.Contains(t, said, "mismatch: "+other.pool(t))
		require.Equal(t, before, tree(t, other.pool(t, "images")), "repair has changed a pool that the state does not know")
	}

	require.FileExists(t, leftover)
}

// identityOf returns the identity of the default pool.
func identityOf(t *testing.T, s *stopped) string {
	t.Helper()

	id, err := pool.ReadIdentity(s.pool(t))
	require.NoError(t, err)
	require.NotEmpty(t, id, "the identity in pool.json")

	return id
}

// TestForgetPoolAcceptsANewDirectory: a pool is lost and replaced by an empty directory. It is
// refused until the state forgets the identity; all other records stay.
func TestForgetPoolAcceptsANewDirectory(t *testing.T) {
	t.Parallel()

	s := serveAndStop(t)
	lost := identityOf(t, s)
	require.NoError(t, os.Rename(s.pool(t), filepath.Join(s.dir, "lost")))
	putDirectory(t, s.pool(t))

	forget := func(args ...string) (code int, said string) {
		code, out, problems := touchstone(append([]string{"state", "forget-pool"}, args...)...)

		return code, out + problems
	}
	stateDir := filepath.Join(s.dir, "state")

	s.during(t, func(client *csiclient.Client) {
		_, err := client.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: s.used})
		rpccode.Require(t, err, codes.Unavailable, "DeleteVolume in a pool of which the state knows another identity")
		errtext.Require(t, err, "touchstone state forget-pool default")

		code, said := forget("default", "--state-dir", stateDir)
		require.Equal(t, exitCannot, code, said)
		require.Contains(t, said, "csi.sock", "the driver that uses the state")
	}, "--node-id=here")

	for name, test := range map[string]struct {
		args []string
		says string
	}{
		"another pool":       {[]string{"other", "--state-dir", stateDir}, "no such pool in the state"},
		"another directory":  {[]string{"default", "--state-dir", filepath.Join(s.dir, "none")}, "state-dir"},
		"no name":            {[]string{"--state-dir", stateDir}, "give the name of one pool"},
		"more than one name": {[]string{"default", "other", "--state-dir", stateDir}, "give the name of one pool"},
	} {
		code, said := forget(test.args...)
		require.Equal(t, exitCannot, code, "%s: %s", name, said)
		require.Contains(t, said, test.says, name)
	}

	require.NoDirExists(t, filepath.Join(s.dir, "none"))

	_, before := s.state("dump")
	require.Contains(t, before, lost, "the identity that the state knows")

	code, said := forget("default", "--state-dir", stateDir)
	require.Zero(t, code, said)
	require.Contains(t, said, "pool default is forgotten")

	_, after := s.state("dump")
	require.NotContains(t, after, lost, "the identity that the state was to forget")

	for _, id := range []string{s.never, s.used, s.directory, s.snapshot} {
		require.Contains(t, after, id, "the records of volumes and snapshots stay")
	}

	s.servesNewPool(t, lost)
}

// servesNewPool starts the driver with an empty pool, once more with what that start has
// made, and deletes the volumes that are not in it.
func (s *stopped) servesNewPool(t *testing.T, lost string) {
	t.Helper()

	s.during(t, func(client *csiclient.Client) {
		createVolume(t, client, "new", nil)
	}, "--node-id=here")

	adopted := identityOf(t, s)
	require.NotEqual(t, lost, adopted, "want: the new pool gets an identity of its own")

	s.during(t, func(client *csiclient.Client) {
		_, err := client.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: s.snapshot})
		require.NoError(t, err)

		for _, id := range []string{s.never, s.used, s.directory} {
			_, err := client.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
			require.NoError(t, err)
		}
	}, "--node-id=here")

	require.Equal(t, adopted, identityOf(t, s), "the identity after another start")

	code, said := s.state("verify")
	require.Zero(t, code, said)
}

func TestPoolsInUseAreNotCompared(t *testing.T) {
	t.Parallel()

	s, other := serveAndStop(t), t.TempDir()

	s.during(t, func(*csiclient.Client) {
		var each sync.WaitGroup

		for _, verb := range []string{"verify", "repair"} {
			for _, extra := range [][]string{nil, {"--state-dir", other}} {
				each.Go(func() {
					code, said := s.state(verb, extra...)
					assert.Equal(t, exitCannot, code, said)
					assert.Contains(t, said, "csi.sock")
				})
			}
		}

		each.Wait()
	})

	require.FileExists(t, s.pool(t, "images", s.never+".img"))
}

func TestNodeStateIsNotComparedWithPools(t *testing.T) {
	t.Parallel()

	s := serveAndStop(t)
	node := &stopped{dir: t.TempDir()}
	node.during(t, func(*csiclient.Client) {}, "--mode=node", "--kubelet-dir", node.dir)

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
	flags := []string{"--mode=all", "--kubelet-dir", s.dir, "--pool-image-size=320Mi"}

	s.untilKilled(t, func(client *csiclient.Client) { createVolume(t, client, "volume", nil) }, flags...)

	code, said := s.state("verify")
	require.Zero(t, code, said)
	require.Contains(t, said, s.pool(t, "mounted"))

	orphan := put(t, s.pool(t, "mounted", "images", newID(t)+".img"), "precious")
	code, said = s.state("verify")
	require.Equal(t, exitNotWell, code, said)
	require.Contains(t, said, orphan)
	require.NoError(t, os.Remove(orphan))

	s.during(t, func(*csiclient.Client) {}, flags...)

	code, said = s.state("verify")
	require.Equal(t, exitCannot, code, said)
	require.Contains(t, said, "not mounted")
}

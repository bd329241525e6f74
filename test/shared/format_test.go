package shared_test

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

const (
	// callLimit ends a call that waits for what the test has stopped. It is shorter
	// than faults.Longest, and far longer than the call takes on a busy machine.
	callLimit = 40 * time.Second
	// metLimit is how long the test waits for a request to meet a fault.
	metLimit = time.Minute
)

// machines are two nodes that each see the pool through a mount of their own, and
// a controller beside the pool itself: what a shared filesystem is.
type machines struct {
	cluster

	seenByA, seenByB *faults.Directory
	pool             string
}

func newMachines(t *testing.T) *machines {
	t.Helper()
	namespace.NeedRoot(t)

	binary, pool := build(t), t.TempDir()

	t.Cleanup(func() { harness.CheckNothingIsLeft(t, pool) })

	m := &machines{pool: pool, seenByA: faults.ServeLocking(t, pool), seenByB: faults.ServeLocking(t, pool)}
	m.controller = start(t, binary, pool, "controller", "controller", "--nodes", "a,b")
	m.a = start(t, binary, m.seenByA.Path, "node", "a")
	m.b = start(t, binary, m.seenByB.Path, "node", "b")

	return m
}

// zeros writes zeros all over the volume's image, so that it is blank and all of
// it has to be read to know that.
func (m *machines) zeros(t *testing.T, made *csi.Volume) {
	t.Helper()

	image, err := os.OpenFile(filepath.Join(m.pool, "images", made.GetVolumeId()+".img"), os.O_WRONLY, 0)
	require.NoError(t, err)

	defer image.Close()

	for range made.GetCapacityBytes() / mib {
		_, err := image.Write(make([]byte, mib))
		require.NoError(t, err)
	}

	require.NoError(t, image.Sync())
}

// TestTwoNodesFormatOneImage has node b read the image, to find out whether it is
// blank, for as long as node a takes to stage the volume and write to it: b must
// not format a copy then and replace a's image by it.
func TestTwoNodesFormatOneImage(t *testing.T) {
	const size = 64 * mib // what create makes

	m := newMachines(t)
	capability := csiclient.MountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "ext4")
	made := m.create(t, capability, nil)
	m.zeros(t, made)

	onA, onB := claim(m.a, made, capability), claim(m.b, made, capability)
	stage := func(node *process, wanted *csiclient.Publication) error {
		ctx, cancel := context.WithTimeout(t.Context(), callLimit)
		defer cancel()

		return node.Stage(ctx, wanted)
	}

	// Behind the superblock, which is at the begin.
	m.seenByB.Inject(t, faults.Fault{
		Name: "images/" + made.GetVolumeId() + ".img", Ops: faults.Reads, Offset: size / 2, Length: size / 2, Hang: true,
	})

	stagedB := make(chan error, 1)
	go func() { stagedB <- stage(m.b, onB) }()

	require.Eventually(t, func() bool { return m.seenByB.Met(t) > 0 }, metLimit, 10*time.Millisecond,
		"node b does not read its image to find out whether it is blank")

	// A CO must not stage on two nodes, but may after a node was taken for dead.
	errA := stage(m.a, onA)
	winner, loser, onWinner, onLoser := m.b, m.a, onB, onA

	if errA == nil {
		winner, loser, onWinner, onLoser = m.a, m.b, onA, onB
		require.NoError(t, winner.Publish(t.Context(), onWinner))
		write(t, data(winner, onWinner))
	}

	m.seenByB.Release(t)

	errB := await.Receive(t, stagedB, "NodeStageVolume on node b to return")
	require.NotEqual(t, errA == nil, errB == nil, "one of two nodes has the image: a: %v, b: %v", errA, errB)

	if errA != nil {
		rpccode.Require(t, errA, codes.Aborted)
		require.NoError(t, winner.Publish(t.Context(), onWinner))
	}

	sum := write(t, data(winner, onWinner))

	// The image is the one that is attached, and stays with who has it.
	rpccode.Require(t, stage(loser, onLoser), codes.FailedPrecondition)
	require.NoError(t, winner.Unpublish(t.Context(), onWinner))
	require.NoError(t, winner.Unstage(t.Context(), onWinner))

	require.NoError(t, stage(loser, onLoser))
	require.NoError(t, loser.Publish(t.Context(), onLoser))
	require.Equal(t, sum, read(t, data(loser, onLoser)), "what was written and synced is lost")
	require.NoError(t, loser.Unpublish(t.Context(), onLoser))
	require.NoError(t, loser.Unstage(t.Context(), onLoser))
	m.delete(t, made)
}

// TestAPoolWithoutLocksIsRefused: nothing would keep two nodes from attaching one
// image, so neither gets it.
func TestAPoolWithoutLocksIsRefused(t *testing.T) {
	m := newMachines(t)

	for name, errno := range map[string]syscall.Errno{
		"not implemented": syscall.ENOSYS, "not supported": syscall.EOPNOTSUPP, "no lock server": syscall.ENOLCK,
	} {
		for kind, capability := range map[string]*csi.VolumeCapability{
			"ext4":      csiclient.MountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "ext4"),
			"block":     csiclient.BlockCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER),
			"read-only": csiclient.BlockCapability(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY),
		} {
			t.Run(name+", "+kind, func(t *testing.T) {
				made := m.create(t, capability, nil)
				onA, onB := claim(m.a, made, capability), claim(m.b, made, capability)

				m.seenByA.Inject(t, faults.Fault{Ops: faults.Locks, Errno: errno})
				m.seenByB.Inject(t, faults.Fault{Ops: faults.Locks, Errno: errno})

				for node, wanted := range map[*process]*csiclient.Publication{m.a: onA, m.b: onB} {
					err := node.Stage(t.Context(), wanted)
					rpccode.Require(t, err, codes.FailedPrecondition)
					errtext.Require(t, err, "no file locks")
				}

				m.seenByA.Release(t)
				m.seenByB.Release(t)
				m.delete(t, made)
			})
		}
	}
}

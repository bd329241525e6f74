package node

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/probe"
	"github.com/touchstone-csi/touchstone/pkg/node/tuning"
)

// LocalNode is what a controller in the same process uses of the node
// (controller.LocalNode). It is safe for concurrent use.
type LocalNode struct {
	*access.Volumes

	nodeID  string
	ways    *access.Ways
	tuner   *tuning.Tuner
	checker *fsck.Checker
	prober  *probe.Prober
	loops   *loop.Loops
}

// Serves reports whether nodeID is the ID of this node.
func (l *LocalNode) Serves(nodeID string) bool { return nodeID == l.nodeID }

// DescribeHolders names, for a message, the processes that keep the volume's image attached to a loop
// device of this machine.
func (l *LocalNode) DescribeHolders(volumeID string) string {
	attached, err := l.loops.Attachments()
	if err != nil {
		return "its users are unknown: " + err.Error()
	}

	isOf := func(each loop.Attachment) bool { return filepath.Base(each.BackingPath) == observe.ImageName(volumeID) }

	at := slices.IndexFunc(attached, isOf)
	if at < 0 {
		return "no loop device of this machine has it; look on other nodes, and for programs that lock it"
	}

	number := attached[at].Number

	return loop.Name(number) + " has it: " + loop.DescribeUsers(number) + "; end it or unmount the volume there"
}

// Condition returns the cached condition of a volume that is in use on this node, or that a
// check here found damaged, nil where the node has none.
func (l *LocalNode) Condition(volumeID string) *health.Record {
	record, _ := l.prober.Monitor().Answer(volumeID)

	return record
}

// Unhealthy returns the cached conditions of all unhealthy volumes behind after, ordered by id.
func (l *LocalNode) Unhealthy(after string) []*health.Record {
	return l.prober.Monitor().Abnormal(after)
}

// Truncated remembers that the image of the volume is too short until a check of its filesystem: it
// may get its size again.
func (l *LocalNode) Truncated(volumeID string) {
	known := l.checker.Get(volumeID)
	if known == nil || known.Suspicion != nil {
		return
	}

	l.checker.Suspect(volumeID, nil, fsck.Suspicion{Reason: health.FilesystemErrors, Message: fsck.Truncated, At: time.Now()})
	l.prober.ProbeAfterOperation(volumeID)
}

// Deleted forgets what the node knows of a volume that does not exist any more. Of an image that was
// missing already, no event reports that.
func (l *LocalNode) Deleted(volumeID string) {
	l.checker.Changed(volumeID)
	l.prober.ProbeAfterOperation(volumeID)
}

// CheckSupported returns cgroup.ErrUnsupported if this machine cannot do what wanted says.
func (l *LocalNode) CheckSupported(wanted volume.Mutable) error {
	return l.tuner.CheckSupported(wanted)
}

// ApplyMutable applies the mutable parameters that the pool has of a volume, if the volume is in
// use on this node. The caller must be in an operation on the volume.
func (l *LocalNode) ApplyMutable(ctx context.Context, volumeID string) error {
	l.checker.Changed(volumeID)

	v, known := l.Staged(volumeID)
	if !known {
		return nil
	}

	return l.ways.Tune(ctx, v)
}

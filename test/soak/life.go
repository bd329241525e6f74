package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/health"
)

// kind is one way to have a volume.
type kind struct {
	name, fsType string
	parameters   map[string]string
	bytes, grows int64
}

func kinds() []kind {
	return []kind{
		{name: "ext4", fsType: "ext4", bytes: 64 * mib, grows: 16 * mib},
		{name: "xfs", fsType: "xfs", bytes: 300 * mib, grows: 32 * mib},
		{name: "btrfs", fsType: "btrfs", bytes: 256 * mib, grows: 32 * mib},
		{name: "block", bytes: 16 * mib, grows: 4 * mib},
		{name: "directory", parameters: map[string]string{"backing": "directory"}, bytes: 16 * mib, grows: 4 * mib},
	}
}

func (k kind) block() bool { return k.fsType == "" && k.parameters == nil }

// checkable says whether it has a filesystem of its own.
func (k kind) checkable() bool { return k.fsType != "" }

func (k kind) capability() *csi.VolumeCapability {
	// It allows two targets on one node.
	const mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER

	if k.block() {
		return csiclient.BlockCapability(mode)
	}

	return csiclient.MountCapability(mode, k.fsType)
}

// life is one volume and what a CO does with it.
type life struct {
	*soak

	kind       kind
	pool, name string
	random     *rand.Rand
	claim      *csiclient.Publication
	bytes      int64
	// data is what was written last.
	data []byte
}

func (s *soak) newLife(k kind, pool, name string, random *rand.Rand) *life {
	return &life{
		soak: s, kind: k, pool: pool, name: name, random: random, bytes: k.bytes,
		claim: &csiclient.Publication{
			NodeID: nodeID, Capability: k.capability(),
			StagingPath: filepath.Join(s.kubelet(), "staging", name),
			TargetPath:  filepath.Join(s.kubelet(), "pods", name, "first"),
		},
	}
}

// step is a part of a lifecycle.
type step struct {
	name string
	do   func(ctx context.Context) error
}

// run does the steps one after the other.
func (l *life) run(ctx context.Context, steps ...step) error {
	for _, each := range steps {
		l.volumes.set(l.claim.VolumeID, l.name+": "+each.name)

		if err := each.do(ctx); err != nil {
			return fmt.Errorf("%s (volume %s): %s: %w", l.name, l.claim.VolumeID, each.name, err)
		}
	}

	return nil
}

// whole is a lifecycle from CreateVolume to DeleteVolume.
func (l *life) whole(ctx context.Context) error {
	copies := []step{{"snapshot and restore", l.restore}, {"clone", l.clone}}
	between := []step{
		{"expand", l.expand},
		{"check online", l.checkOnline},
		{"publish twice", l.publishTwice},
		{"write", l.write},
		{"read usage", l.usage},
	}

	var idle []step
	if l.kind.checkable() {
		between = append(between, copies...)
	} else {
		// It can't be frozen: it is copied while it is not in use.
		idle = l.some(copies)
	}

	up, down := l.up(nil), l.down()

	return l.wholly(ctx, slices.Concat(up, []step{{"write", l.write}}, l.some(between), []step{{"read", l.read}}, down[:2], idle, down[2:]))
}

// some returns at least one of the steps, in any order.
func (l *life) some(steps []step) []step {
	l.random.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })

	return steps[:1+l.random.IntN(len(steps))]
}

// wholly does the steps. After one that fails it gives back what can be given
// back, so that what is left in the end is the driver's doing.
func (l *life) wholly(ctx context.Context, steps []step) error {
	err := l.run(ctx, steps...)
	if err == nil || l.claim.VolumeID == "" {
		return err
	}

	for _, each := range l.down() {
		_ = each.do(ctx) // what has not been done need not be undone
	}

	return err
}

// up brings the volume, made of source if there is one, to its target.
func (l *life) up(source *csi.VolumeContentSource) []step {
	return []step{
		{"create", func(ctx context.Context) error { return l.create(ctx, source) }},
		{"attach", func(ctx context.Context) error { return l.Attach(ctx, l.claim) }},
		{"stage", func(ctx context.Context) error { return l.Stage(ctx, l.claim) }},
		{"publish", func(ctx context.Context) error { return l.Publish(ctx, l.claim) }},
	}
}

// down unpublishes, unstages and detaches it.
func (l *life) down() []step {
	return []step{
		{"unpublish", func(ctx context.Context) error { return l.Unpublish(ctx, l.claim) }},
		{"unstage", func(ctx context.Context) error { return l.Unstage(ctx, l.claim) }},
		{"check offline", l.checkOffline},
		{"detach", func(ctx context.Context) error { return l.Detach(ctx, l.claim) }},
		{"delete", l.delete},
		{"tidy up", l.tidy},
	}
}

func (l *life) create(ctx context.Context, source *csi.VolumeContentSource) error {
	parameters := map[string]string{"pool": l.pool}
	maps.Copy(parameters, l.kind.parameters)

	request := &csi.CreateVolumeRequest{
		Name: l.name, Parameters: parameters, VolumeContentSource: source,
		VolumeCapabilities: []*csi.VolumeCapability{l.kind.capability()},
		CapacityRange:      &csi.CapacityRange{RequiredBytes: l.bytes},
	}

	made, err := l.CreateVolume(ctx, request)
	if err != nil {
		return err
	}

	l.claim.VolumeID, l.claim.VolumeContext = made.GetVolume().GetVolumeId(), made.GetVolume().GetVolumeContext()
	l.volumes.add(l.claim.VolumeID, l.name+": created")

	return nil
}

func (l *life) delete(ctx context.Context) error {
	_, err := l.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: l.claim.VolumeID})
	if err == nil {
		l.volumes.drop(l.claim.VolumeID)
	}

	return err
}

// tidy removes what the CO has made.
func (l *life) tidy(context.Context) error {
	return errors.Join(os.Remove(l.claim.StagingPath), os.Remove(filepath.Dir(l.claim.TargetPath)))
}

func (l *life) place(claim *csiclient.Publication) string {
	if l.kind.block() {
		return claim.TargetPath
	}

	return filepath.Join(claim.TargetPath, "data")
}

// write overwrites the data and waits for the disk.
func (l *life) write(context.Context) (failure error) {
	// An odd amount, so that nothing depends on whole blocks.
	data := make([]byte, mib+l.random.IntN(mib))
	for at := 0; at+8 <= len(data); at += 8 {
		binary.NativeEndian.PutUint64(data[at:], l.random.Uint64())
	}

	file, err := os.OpenFile(l.place(l.claim), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}

	defer func() { failure = errors.Join(failure, file.Close()) }()

	l.data = data
	_, err = file.WriteAt(data, 0)

	return errors.Join(err, file.Sync())
}

var errWrongData = errors.New("it does not hold what was written")

func (l *life) read(context.Context) error { return l.holds(l.claim) }

func (l *life) holds(claim *csiclient.Publication) error {
	file, err := os.Open(l.place(claim))
	if err != nil {
		return err
	}
	defer file.Close()

	found := make([]byte, len(l.data))
	if _, err := file.ReadAt(found, 0); err != nil {
		return err
	}

	if !bytes.Equal(found, l.data) {
		return fmt.Errorf("%w: %s", errWrongData, file.Name())
	}

	return nil
}

func (l *life) expand(ctx context.Context) error {
	l.bytes += l.kind.grows
	wanted := &csi.CapacityRange{RequiredBytes: l.bytes}

	answer, err := l.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId: l.claim.VolumeID, CapacityRange: wanted, VolumeCapability: l.claim.Capability,
	})
	if err != nil || !answer.GetNodeExpansionRequired() {
		return err
	}

	_, err = l.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
		VolumeId: l.claim.VolumeID, VolumePath: l.claim.TargetPath, StagingTargetPath: l.claim.StagingPath,
		CapacityRange: wanted, VolumeCapability: l.claim.Capability,
	})
	// A process without CAP_SYS_RESOURCE can't have a mounted ext4 grow.
	if l.kind.fsType == "ext4" && status.Code(err) == codes.FailedPrecondition {
		return nil
	}

	return err
}

func (l *life) restore(ctx context.Context) error {
	made, err := l.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: l.name, SourceVolumeId: l.claim.VolumeID})
	for err == nil && !made.GetSnapshot().GetReadyToUse() {
		made, err = l.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: l.name, SourceVolumeId: l.claim.VolumeID})
	}

	if err != nil {
		return err
	}

	id := made.GetSnapshot().GetSnapshotId()
	err = l.copied(ctx, "restored", &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id},
	}})
	_, deleted := l.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})

	return errors.Join(err, deleted)
}

func (l *life) clone(ctx context.Context) error {
	return l.copied(ctx, "cloned", &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: l.claim.VolumeID},
	}})
}

// copied lives the life of a copy, which holds what its source did.
func (l *life) copied(ctx context.Context, how string, source *csi.VolumeContentSource) error {
	another := l.newLife(l.kind, l.pool, l.name+" "+how, l.random)
	another.bytes, another.data = l.bytes, l.data
	steps := slices.Concat(another.up(source), []step{{"read", another.read}, {"check online", another.checkOnline}}, another.down())

	return another.wholly(ctx, steps)
}

func (l *life) publishTwice(ctx context.Context) error {
	second := *l.claim
	second.TargetPath = filepath.Join(filepath.Dir(l.claim.TargetPath), "second")

	if err := l.Publish(ctx, &second); err != nil {
		return err
	}

	return errors.Join(l.holds(&second), l.Unpublish(ctx, &second))
}

func (l *life) usage(ctx context.Context) error {
	_, err := l.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: l.claim.VolumeID, VolumePath: l.claim.TargetPath})

	return err
}

func (l *life) checkOnline(ctx context.Context) error  { return l.check(ctx, "online") }
func (l *life) checkOffline(ctx context.Context) error { return l.check(ctx, "offline") }

var errNotClean = errors.New("a healthy filesystem is not clean")

func (l *life) check(ctx context.Context, how string) error {
	if !l.kind.checkable() {
		return nil
	}

	found, err := health.NewClient(l.Conn()).Check(ctx, health.CheckRequest{VolumeID: l.claim.VolumeID, How: how})
	if err != nil {
		return err
	}

	l.checks.Add(1)

	if found.Verdict != "clean" || found.How != how {
		return fmt.Errorf("%w: %s (%s): %s", errNotClean, found.Verdict, found.How, found.Detail)
	}

	return nil
}

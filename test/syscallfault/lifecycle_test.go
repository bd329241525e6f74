package syscallfault_test

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// bystander is the volume that each injection must leave alone.
const bystander = "bystander"

// step is one call of the CO.
type step struct {
	name string
	call func(ctx context.Context) error
	// then is what its acknowledgement means.
	then func()
	// covered says that another lifecycle has its injections.
	covered bool
	// starts marks the restart of the driver, instead of a call.
	starts bool
}

// lifecycle makes the steps of one lifecycle: fresh volumes each time.
type lifecycle struct {
	name  string
	steps func(s *site, turn string) []step
}

func image(fsType string, bytes int64) *kind {
	return &kind{name: fsType, fsType: fsType, bytes: bytes, grows: 16 * mib}
}

func (k *kind) with(name string, parameters map[string]string) *kind {
	changed := *k
	changed.name, changed.parameters = name, parameters

	return &changed
}

const (
	xfsBytes   = 300 * mib
	btrfsBytes = 256 * mib
	smallBytes = 16 * mib
)

// onPlainPools are the lifecycles that run where files can't share blocks.
func onPlainPools() []lifecycle {
	thick := map[string]string{"provisioning": "thick"}
	directory := &kind{name: "directory", parameters: map[string]string{"backing": "directory"}, bytes: smallBytes, grows: 4 * mib}
	block := &kind{name: "block", block: true, bytes: smallBytes, grows: 4 * mib}
	direct := image("ext4", smallBytes).with("direct", map[string]string{"directAssign": "true"})
	direct.direct = true

	inline := image("ext4", smallBytes).with("inline", nil)
	inline.inline = true
	inlineDirectory := directory.with("inline directory", directory.parameters)
	inlineDirectory.inline = true

	return []lifecycle{
		whole(image("ext4", smallBytes)),
		whole(image("ext4", smallBytes).with("thick", thick)),
		whole(block), whole(directory),
		whole(direct),
		ephemeral(inline), ephemeral(inlineDirectory),
		copied(image("ext4", smallBytes)), copied(directory),
		restarted("a start", image("ext4", smallBytes), block, directory, inline, direct),
	}
}

// onReflinkPools are those that run where copies are clones.
func onReflinkPools() []lifecycle {
	block := &kind{name: "block", block: true, bytes: smallBytes, grows: 4 * mib}

	return []lifecycle{
		whole(image("xfs", xfsBytes)), whole(image("btrfs", btrfsBytes)),
		whole(block.with("thick block", map[string]string{"provisioning": "thick"})),
		copied(image("ext4", smallBytes).with("cloned ext4", nil)),
		copied(image("xfs", xfsBytes)), copied(image("btrfs", btrfsBytes)), copied(block),
		restarted("a start with clones", image("xfs", xfsBytes), image("btrfs", btrfsBytes), block),
	}
}

// whole is a volume from its creation to its deletion.
func whole(k *kind) lifecycle {
	return lifecycle{name: k.name, steps: func(s *site, turn string) []step {
		v := s.newVolume(k, turn)
		up := []step{s.create(v), s.attach(v), s.stage(v), s.publish(v), v.fill(), s.stats(v), s.expand(v)}
		down := []step{s.unpublish(v), s.unstage(v), s.detach(v), s.delete(v)}

		switch {
		case k.image() && (k.fsType == "ext4"): // this kernel does not grow it online
			up = append(up, named("unpublish and grow", s.unpublish(v)), named("unstage and grow", s.unstage(v)),
				named("stage and grow", s.stage(v)), named("publish grown", s.publish(v)), v.check())
		case k.image():
			up = append(up, s.expandOnNode(v), v.check())
		}

		return append(up, down...)
	}}
}

func ephemeral(k *kind) lifecycle {
	return lifecycle{name: k.name, steps: func(s *site, turn string) []step {
		return s.inline(s.newVolume(k, turn))
	}}
}

// inline are the steps of an inline ephemeral volume, which has no others.
func (s *site) inline(v *volume) []step {
	publish, unpublish := s.publish(v), s.unpublish(v)
	publish.then = func() { v.created, v.published, v.staged = true, true, true }
	unpublish.then = func() { v.created, v.published, v.staged = false, false, false }

	return []step{publish, v.fill(), s.stats(v), v.check(), unpublish}
}

// copied is a volume that is copied in every way, and its copies.
func copied(k *kind) lifecycle {
	return lifecycle{name: "copies of " + k.name, steps: func(s *site, turn string) []step {
		v, restored, cloned := s.newVolume(k, turn), s.newVolume(k, turn+"-restored"), s.newVolume(k, turn+"-cloned")
		taken := &snapshot{name: turn}
		s.model.snapshots = append(s.model.snapshots, taken)

		all := covered(s.create(v), s.attach(v), s.stage(v), s.publish(v), v.fill())
		all = append(all, s.snapshot(v, taken), s.deleteSnapshot(taken), named("snapshot again", s.snapshot(v, taken)),
			named("restore", s.createFrom(restored, func() *csi.VolumeContentSource { return ofSnapshot(taken) }, v)),
			named("clone", s.createFrom(cloned, func() *csi.VolumeContentSource { return ofVolume(v) }, v)))
		all = append(all, covered(s.attach(restored))...)
		all = append(all, named("stage the copy", s.stage(restored)))
		all = append(all, covered(s.publish(restored), restored.check(), s.unpublish(restored))...)
		all = append(all, named("unstage the copy", s.unstage(restored)))
		all = append(all, covered(s.detach(restored), s.delete(restored), s.delete(cloned), s.unpublish(v), s.unstage(v), s.detach(v))...)

		return append(all, named("delete the source", s.delete(v)), named("delete the last snapshot", s.deleteSnapshot(taken)))
	}}
}

// restarted has volumes of each kind in use, and a snapshot, while the driver
// starts.
func restarted(name string, kinds ...*kind) lifecycle {
	return lifecycle{name: name, steps: func(s *site, turn string) []step {
		var up, down []step

		for i, k := range kinds {
			v := s.newVolume(k, fmt.Sprintf("%s-%d", turn, i))

			if k.inline {
				steps := s.inline(v)
				up, down = append(up, steps[:2]...), append(down, steps[2:]...)

				continue
			}

			up = append(up, s.create(v), s.attach(v), s.stage(v), s.publish(v), v.fill())
			down = append(down, s.unpublish(v), s.unstage(v), s.detach(v), s.delete(v))

			if i == 0 {
				taken := &snapshot{name: turn}
				s.model.snapshots = append(s.model.snapshots, taken)
				up, down = append(up, s.snapshot(v, taken)), append(down, s.deleteSnapshot(taken))
			}
		}

		return append(append(covered(up...), step{name: "start", starts: true}), covered(down...)...)
	}}
}

func named(name string, s step) step {
	s.name = name

	return s
}

func covered(all ...step) []step {
	for i := range all {
		all[i].covered = true
	}

	return all
}

func ofSnapshot(taken *snapshot) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: taken.id},
	}}
}

func ofVolume(v *volume) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: v.VolumeID},
	}}
}

func (s *site) create(v *volume) step { return s.createFrom(v, nil, nil) }

func (s *site) createFrom(v *volume, from func() *csi.VolumeContentSource, source *volume) step {
	return step{name: "create", call: func(ctx context.Context) error {
		request := &csi.CreateVolumeRequest{
			Name: v.name, Parameters: v.kind.parameters,
			VolumeCapabilities: []*csi.VolumeCapability{v.kind.capability()},
			CapacityRange:      &csi.CapacityRange{RequiredBytes: v.capacity},
		}
		if from != nil {
			request.VolumeContentSource = from()
			request.Parameters = consistent(v.kind, request.GetParameters())
		}

		answer, err := s.CreateVolume(ctx, request)
		if err != nil {
			return err
		}

		v.VolumeID, v.VolumeContext = answer.GetVolume().GetVolumeId(), answer.GetVolume().GetVolumeContext()

		return nil
	}, then: func() {
		v.created = true
		if source != nil {
			v.data = source.data
		}
	}}
}

// consistent asks for a copy of what is in use: only directories and block
// devices can't be frozen.
func consistent(k *kind, parameters map[string]string) map[string]string {
	with := map[string]string{"consistency": "none"}
	maps.Copy(with, parameters)

	if k.image() && !k.block {
		delete(with, "consistency")
	}

	return with
}

func (s *site) attach(v *volume) step {
	return step{
		name: "attach", then: func() { v.attached = true },
		call: func(ctx context.Context) error { return s.Attach(ctx, &v.Publication) },
	}
}

func (s *site) detach(v *volume) step {
	return step{
		name: "detach", then: func() { v.attached = false },
		call: func(ctx context.Context) error { return s.Detach(ctx, &v.Publication) },
	}
}

func (s *site) stage(v *volume) step {
	return step{
		name: "stage", then: func() { v.staged = true },
		call: func(ctx context.Context) error { return s.Stage(ctx, &v.Publication) },
	}
}

func (s *site) unstage(v *volume) step {
	return step{
		name: "unstage", then: func() { v.staged = false },
		call: func(ctx context.Context) error { return s.Unstage(ctx, &v.Publication) },
	}
}

func (s *site) publish(v *volume) step {
	return step{
		name: "publish", then: func() { v.published = true },
		call: func(ctx context.Context) error { return s.Publish(ctx, &v.Publication) },
	}
}

func (s *site) unpublish(v *volume) step {
	return step{
		name: "unpublish", then: func() { v.published = false },
		call: func(ctx context.Context) error { return s.Unpublish(ctx, &v.Publication) },
	}
}

func (s *site) delete(v *volume) step {
	return step{name: "delete", then: func() { v.created = false }, call: func(ctx context.Context) error {
		_, err := s.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v.VolumeID})

		return err
	}}
}

func (s *site) stats(v *volume) step {
	return step{name: "stats", then: func() {}, call: func(ctx context.Context) error {
		if v.kind.direct { // the guest would be asked
			return nil
		}

		_, err := s.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: v.VolumeID, VolumePath: v.TargetPath})

		return err
	}}
}

func (s *site) expand(v *volume) step {
	return step{name: "expand", then: func() { v.capacity += v.kind.grows }, call: func(ctx context.Context) error {
		_, err := s.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
			VolumeId: v.VolumeID, CapacityRange: &csi.CapacityRange{RequiredBytes: v.capacity + v.kind.grows},
		})

		return err
	}}
}

func (s *site) expandOnNode(v *volume) step {
	return step{name: "expand on the node", then: func() {}, call: func(ctx context.Context) error {
		_, err := s.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
			VolumeId: v.VolumeID, VolumePath: v.TargetPath, StagingTargetPath: v.StagingPath, VolumeCapability: v.Capability,
			CapacityRange: &csi.CapacityRange{RequiredBytes: v.capacity},
		})

		return err
	}}
}

func (s *site) snapshot(v *volume, taken *snapshot) step {
	return step{name: "snapshot", call: func(ctx context.Context) error {
		answer, err := s.CreateSnapshotAndWait(ctx, &csi.CreateSnapshotRequest{
			SourceVolumeId: v.VolumeID, Name: taken.name, Parameters: consistent(v.kind, nil),
		})
		if err != nil {
			return err
		}

		taken.id = answer.GetSnapshot().GetSnapshotId()

		return nil
	}, then: func() { taken.created, taken.data = true, slices.Clone(v.data) }}
}

func (s *site) deleteSnapshot(taken *snapshot) step {
	return step{name: "delete the snapshot", then: func() { taken.created = false }, call: func(ctx context.Context) error {
		_, err := s.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: taken.id})

		return err
	}}
}

// fill writes data, without a call of the driver.
func (v *volume) fill() step {
	return step{name: "write", covered: true, then: func() {}, call: func(context.Context) error {
		if v.kind.direct {
			return nil
		}

		return v.write()
	}}
}

func (v *volume) check() step {
	return step{name: "read", covered: true, then: func() {}, call: func(context.Context) error {
		if err := v.holds(); err != nil {
			return fmt.Errorf("read %s: %w", v.name, err)
		}

		return nil
	}}
}

package demo

import (
	"slices"
)

// The calls on copies that appear more than once.
const (
	createSnapshot = "CreateSnapshot"
	deleteSnapshot = "DeleteSnapshot"
	createGroup    = "CreateVolumeGroupSnapshot"
	deleteGroup    = "DeleteVolumeGroupSnapshot"
	listSnapshots  = "ListSnapshots"
	readAndSum     = "read, sha256"
)

// copySections are the sections that copy volumes in use.
func (d *demo) copySections() []section {
	a := d.copySet

	return []section{
		{"Snapshots of the " + a.source.kind + " volume, while it is mounted", []step{
			{createSnapshot, d.takeSnapshot(a.before)},
			{createSnapshot, d.takeSnapshotAgain(a.before)},
			{"overwrite, fsync", a.source.write},
			{createSnapshot, d.takeSnapshot(a.after)},
			{listSnapshots, d.verifySnapshotsListed(a)},
			{"GetMetadataDelta", d.getChangedBlocks(a)},
		}},
		{"The first snapshot becomes a larger volume, beside its source", slices.Concat(d.publishSteps(a.restored), []step{
			{readAndSum, a.restored.verify("of the copy, before the overwriting")},
			{readAndSum, a.source.verify("of the source, overwritten")},
			{"filesystem UUIDs", a.verifyUUIDsDiffer},
			{getVolumeStats, d.getStatsLargerThan(a.restored, a.source)},
		})},
		{"A clone of the mounted volume", slices.Concat(d.publishSteps(a.cloned), []step{
			{readAndSum, a.cloned.verify("of the clone")},
			{"overwrite, fsync", a.cloned.write},
			{readAndSum, a.source.verify("of the source, unchanged")},
		})},
		{"A group snapshot of two mounted volumes", slices.Concat([]step{
			{createGroup, d.takeGroup(a.group)},
			{createGroup, d.takeGroupAgain(a.group)},
			{deleteSnapshot, d.deleteMemberRefused(a.group.members[1])},
		}, d.publishSteps(a.member), []step{
			{readAndSum, a.member.verify("of a member, restored alone")},
		})},
	}
}

// publishSteps create a copy and publish it.
func (d *demo) publishSteps(v *volume) []step {
	return []step{
		{createVolume, d.create(v)},
		{createVolume, d.createAgain(v)},
		{controllerPublish, d.attach(v)},
		{stageVolume, d.stage(v)},
		{publishVolume, d.publish(v)},
	}
}

// survivingSnapshotSteps use snapshots whose source volumes are deleted.
func (d *demo) survivingSnapshotSteps() []step {
	a := d.copySet

	return []step{
		{"GetMetadataAllocated", d.getAllocatedBlocks(a.before)},
		{deleteSnapshot, d.deleteSnapshot(a.before)},
		{deleteSnapshot, d.deleteSnapshotAgain(a.before)},
		{deleteSnapshot, d.deleteSnapshot(a.after)},
		{"GetVolumeGroupSnapshot", d.getGroup(a.group)},
		{deleteGroup, d.deleteGroup(a.group)},
	}
}

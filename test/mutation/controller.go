package main

// controllerMutants are defects of the Controller and GroupController services.
func controllerMutants() []mutant {
	return []mutant{
		{
			name: "controller/attached-volume-deleted", file: "pkg/controller/delete.go",
			old:    `if len(v.Attachments) > 0 && s.has(`,
			new:    `if len(v.Attachments) > 1 && s.has(`,
			breaks: "DeleteVolume removes the data of an attached volume", tests: in("test/driver/requests", "TestCallsOutOfOrder"),
		},
		{
			name: "controller/staged-volume-deleted", file: "pkg/controller/delete.go",
			old:    `if err == nil && used {`,
			new:    `if err == nil && used && user == "" {`,
			breaks: "DeleteVolume removes the data of a staged volume",
			tests:  in("test/driver/requests", "TestCallsOutOfOrder", "TestLifeWithoutACapability", "TestWithoutAttachmentBytesAreThereForGood"),
		},
		{
			name: "controller/deletion-not-recorded-first", file: "pkg/controller/delete.go",
			old: `			v.Phase = record.PhaseDeleting

`,
			new:    ``,
			breaks: "a volume whose bytes are gone is still listed if the driver is killed",
			tests:  in("test/driver/removal", "TestWhatCantBeRemovedBlocksNothing"),
		},
		{
			name: "controller/unknown-data-deleted-at-start", file: "pkg/controller/service.go",
			old:    `removed, err := p.RemoveEmptyOrphan(entry)`,
			new:    `removed, err := true, p.Discard(ctx, pool.Object{ID: entry.ID, Backing: entry.Backing})`,
			breaks: "images that hold data but are not in the state are removed at the start",
			tests:  in("test/driver/removal", "TestOrphansAtTheStart"),
		},
		{
			name: "controller/images-being-made-are-orphans", file: "pkg/controller/create.go",
			old: `	s.creating.Store(fresh.ID, nil)
`,
			new:    ``,
			breaks: "the image of a CreateVolume is removed if its pool fails and is opened again meanwhile",
			tests:  in("test/driver/pools", "TestAnImageIsKeptWhileItsVolumeIsCreated"),
		},
		{
			name: "controller/snapshots-are-ordered-by-time", file: "pkg/controller/record/snapshot.go",
			old:    `if s.Sequence == 0 || other.Sequence == 0 {`,
			new:    `if true || s.Sequence == 0 || other.Sequence == 0 {`,
			breaks: "a clock that is set back between two snapshots makes their delta INVALID_ARGUMENT",
			tests:  in("test/driver/metadata", "TestDeltaOfSnapshotsWhenTheClockWasSetBack"),
		},
		{
			name: "controller/one-attachment-too-many", file: "pkg/controller/attach.go",
			old:    `taken >= s.config.MaxVolumesPerNode {`,
			new:    `taken > s.config.MaxVolumesPerNode {`,
			breaks: "a node gets one volume more than its limit", tests: in("test/driver/create", "TestAttachmentsAreLimited"),
		},
		{
			name: "controller/multi-node-joins-single-node", file: "pkg/controller/record/attachment.go",
			old:    `slices.ContainsFunc(v.Attachments, func(a Attachment) bool { return a.Capability.SingleNode() })`,
			new:    `slices.ContainsFunc(v.Attachments, func(a Attachment) bool { return a.Capability.SingleNode() && a.ReadOnly })`,
			breaks: "a node attaches a volume that another node has alone",
			tests:  in("test/driver/publishing", "TestAModeForManyDoesNotJoinOneForOne"),
		},
		{
			name: "controller/single-node-joins-others", file: "pkg/controller/record/attachment.go",
			old: `wanted.Capability.SingleNode() ||
`,
			new: `wanted.Capability.SingleNode() && wanted.ReadOnly ||
`,
			breaks: "a volume for one node alone is attached beside other nodes", tests: in("test/driver/publishing", "TestAccessModes"),
		},
		{
			name: "controller/attached-otherwise-accepted", file: "pkg/controller/record/attachment.go",
			old:    `if a.ReadOnly == wanted.ReadOnly && a.Capability`,
			new:    `if a.Capability`,
			breaks: "a writable attachment answers a request for a read-only one",
			tests:  in("test/driver/publishing", "TestAttachedForReading", "TestAccessModes"),
		},
		{
			name: "controller/detaches-all-nodes", file: "pkg/controller/attach.go",
			old:    `return nodeID == "" || a.NodeID == nodeID }`,
			new:    `return nodeID == "" || a.NodeID != "" }`,
			breaks: "detaching a volume from one node takes it from all",
			tests:  in("test/driver/publishing", "TestAccessModes"),
		},
		{
			name: "controller/unknown-node-is-invalid", file: "pkg/controller/attach.go",
			old:    `rpc.Errorf(codes.NotFound, "node %q does not exist;`,
			new:    `rpc.Errorf(codes.InvalidArgument, "node %q does not exist;`,
			breaks: "an unknown node gets the wrong code", tests: in("test/driver/staging", "TestNodesThatExist"),
		},
		{
			name: "controller/attached-before-durable", file: "pkg/controller/attach.go",
			old:    `return p.SyncImage(v.ID)`,
			new:    `return nil`,
			breaks: "an attached volume's image is lost in a power failure",
			tests:  in("test/driver/pools", "TestNothingIsAcknowledgedThatWasNotSynced", "TestAThickVolumeIsSyncedWhenItIsMade"),
		},
		{
			name: "controller/limit-ignored-for-existing", file: "pkg/controller/create.go",
			old:    `if v.CapacityBytes < required || limit > 0 && v.CapacityBytes > limit {`,
			new:    `if v.CapacityBytes < required {`,
			breaks: "a volume larger than the limit answers a retry", tests: in("test/driver/create", "TestCreateIsIdempotentByName", "TestCreateAfterExpansion"),
		},
		{
			name: "controller/other-parameters-accepted", file: "pkg/controller/create.go",
			old:    `if v.Parameters != asked {`,
			new:    `if v.Parameters.Pool != asked.Pool {`,
			breaks: "a volume of another kind answers a retry", tests: in("test/driver/create", "TestCreateIsIdempotentByName"),
		},
		{
			name: "controller/limit-compared-before-rounding", file: "pkg/controller/capacity.go",
			old:    `if limit > 0 && size > limit {`,
			new:    `if limit > 0 && required > limit {`,
			breaks: "a volume is larger than its limit", tests: in("test/driver/create", "TestSizes", "TestExpansionSizes"),
		},
		{
			name: "controller/provisioned-twice-at-once", file: "pkg/controller/create.go",
			old:    `!reserved {`,
			new:    `reserved {`,
			breaks: "concurrent calls provision more than the pool has", tests: in("test/driver/pools", "TestSlowCallsProvisionThePoolOnce"),
		},
		{
			name: "controller/failed-creation-leaves-bytes", file: "pkg/controller/create.go",
			old:    `if err := p.Discard(ctx, v.Object()); err != nil {`,
			new:    `if err := ctx.Err(); err != nil {`,
			breaks: "a creation that fails leaves an image",
			tests:  in("test/driver/create", "TestAFailedCreationLeavesNothing"),
		},
		{
			name: "controller/page-one-too-long", file: "pkg/controller/page.go",
			old:    `len(p.entries) == p.maxEntries`,
			new:    `len(p.entries) > p.maxEntries`,
			breaks: "a page has more entries than asked for", tests: in("test/driver/create", "TestAPageHasNoMoreThanAskedFor"),
		},
		{
			name: "controller/deleted-volumes-listed", file: "pkg/controller/list.go",
			old:    `if v.Phase != record.PhaseReady {`,
			new:    `if v.Phase == record.PhaseCreating {`,
			breaks: "a deleted volume is listed until its bytes are gone",
			tests:  in("test/driver/create", "TestListingWhileVolumesComeAndGo"),
		},
		{
			name: "controller/status-of-another-volume", file: "pkg/controller/list.go",
			old:    `shared, ok := t.healthy[node]`,
			new:    `shared, ok := t.healthy[""]`,
			breaks: "ListVolumes reports a volume on nodes where it is not",
			tests:  in("test/driver/create", "TestAPageHasNoMoreThanAskedFor"),
		},
		{
			name: "controller/provision-leaks", file: "pkg/controller/record/usage.go",
			old:    `l.provisioned.Add(old.Parameters.Pool, -old.CapacityBytes)`,
			new:    `l.provisioned.Add(old.Parameters.Pool, 0)`,
			breaks: "the pool's capacity shrinks with each deleted volume",
			tests:  in("test/driver/pools", "TestPoolIsNotPromisedTwice", "TestOvercommit", "TestThickExpansionUsesTheWholePool", "TestThinAndThick"),
		},
		{
			name: "controller/snapshots-not-provisioned", file: "pkg/controller/record/usage.go",
			old:    `l.provisioned.Add(now.Parameters.Pool, now.AllocatedBytes)`,
			new:    `l.provisioned.Add(now.Parameters.Pool, 0)`,
			breaks: "snapshots overcommit the pool", tests: in("test/driver/copies", "TestASnapshotPromisesWhatItHolds"),
		},
		{
			name: "controller/failed-group-leaves-members", file: "pkg/controller/snapshot.go",
			old:    `return s.undoSnapshots(ctx, err, group, fresh...)`,
			new:    `return err`,
			breaks: "a group snapshot that fails leaves snapshots of some members",
			tests:  in("test/driver/copies", "TestAGroupThatFailsAtItsLastMember"),
		},
		{
			name: "controller/member-of-a-group-deleted", file: "pkg/controller/snapshot.go",
			old:    `case found.GroupID != "":`,
			new:    `case found.GroupID != "" && found.Phase != record.PhaseReady:`,
			breaks: "a group loses one of its snapshots", tests: in("test/driver/copies", "TestAGroupIsAllOfItsMembers"),
		},
		{
			name: "controller/half-made-snapshots-kept", file: "pkg/controller/service.go",
			old:    `errors.Join(s.recoverVolumes(), s.removeUnfinishedSnapshots())`,
			new:    `errors.Join(s.recoverVolumes())`,
			breaks: "a snapshot that a killed driver began is never forgotten",
			tests:  in("test/driver/copies", "TestAKilledSnapshotIsForgotten", "TestAKilledGroupIsForgotten"),
		},
		{
			name: "controller/snapshot-deleted-while-read", file: "pkg/controller/inflight/locks.go",
			old:    `case l.held[id] > 0:`,
			new:    `case l.held[id] > 1:`,
			breaks: "a snapshot is deleted while a volume is restored from it", tests: in("test/driver/copies", "TestWhatIsReadIsNotDeleted"),
		},
		{
			name: "controller/clone-smaller-than-source", file: "pkg/controller/restore.go",
			old:    `if source.CapacityBytes > wanted.size {`,
			new:    `if source.CapacityBytes > wanted.size+source.CapacityBytes {`,
			breaks: "a clone that races an expansion of its source is truncated",
			tests:  in("test/driver/copies", "TestACloneThatMeetsAnExpansion"),
		},
		{
			name: "controller/node-expansion-not-required", file: "pkg/controller/expand.go",
			old:    `NodeExpansionRequired: expanded.Parameters.Backing == volume.BackingImage,`,
			new:    `NodeExpansionRequired: expanded.Parameters.Backing == volume.BackingDirectory,`,
			breaks: "the CO does not have the node grow the filesystem", tests: in("test/driver/staging", "TestExpansionsTellTheNode"),
		},
		{
			name: "controller/truncated-image-is-healthy", file: "pkg/controller/health.go",
			old:    `size < v.CapacityBytes:`,
			new:    `size == 0:`,
			breaks: "an image that lost its end is not reported", tests: in("test/driver/health", "TestHealthOfBackingFiles"),
		},
		{
			name: "controller/ephemeral-volumes-not-provisioned", file: "pkg/node/service.go",
			old:    `config.Admission.Register(s.ephemeral)`,
			new:    `_ = config.Admission`,
			breaks: "inline volumes overcommit the pool", tests: in("test/driver/ephemeral", "TestEphemeralTakesPartInThePromise"),
		},
		{
			name: "controller/mkfs-options-not-checked", file: "pkg/controller/create.go",
			old:    `if source.IsZero() || fsNamed {`,
			new:    `if !source.IsZero() && fsNamed {`,
			breaks: "a volume is made that no node can format",
			tests:  in("test/driver/publishing", "TestMkfsOptionsAreRefusedBeforeAnythingIsMade"),
		},
		{
			name: "controller/unread-stream-not-ended", file: "pkg/controller/metadata/service.go",
			old:    `time.AfterFunc(m.idle, func() {`,
			new:    `time.AfterFunc(time.Hour+m.idle, func() {`,
			breaks: "a client that does not read keeps a snapshot from being deleted",
			tests:  in("test/driver/metadata", "TestMetadataStreamThatIsNotReadEnds"),
		},
	}
}

package main

// nodeMutants are defects of the Node service.
func nodeMutants() []regression {
	return []regression{
		{
			name: "node/read-only-publication-writable", in: "access.Targets.bind",
			old:    `MountOptions(publication.Capability, publication.ReadOnly || v.IsReadOnly())`,
			new:    `MountOptions(publication.Capability, v.IsReadOnly())`,
			breaks: "a pod writes a volume that it has read-only", tests: in("test/driver/publishing", "TestReadOnlyBesideWritable"),
		},
		{
			name: "node/read-only-staging-writable", in: "staged.Volume.MountOptions",
			old:    `MountOptions(v.Capability, v.IsReadOnly())`,
			new:    `MountOptions(v.Capability, v.ReadOnly && v.Copy)`,
			breaks: "a volume that is attached read-only is mounted writable",
			tests:  in("test/driver/staging", "TestStagingOfReadersIsReadOnly"),
		},
		{
			name: "node/other-capability-accepted", in: "node.checkSameStaging",
			old:    `differences := current.CapabilityDifferences(wanted.Capability)`,
			new:    `differences := current.CapabilityDifferences(current.Capability)`,
			breaks: "a staging with other mount flags or another mode is answered with success",
			tests:  in("test/driver/publishing", "TestEachAccessModeAllowsItsPublications"),
		},
		{
			name: "node/missing-parent-is-not-found", in: "node.lifecycle.Publish",
			old:    `rpc.Errorf(codes.FailedPrecondition, "the CO must make the target's parent`,
			new:    `rpc.Errorf(codes.NotFound, "the CO must make the target's parent`,
			breaks: "a CO that has not made the target's parent gets NOT_FOUND, as if the volume were missing",
			tests:  in("test/driver/staging", "TestTargetWithoutItsParent"),
		},
		{
			name: "node/published-volume-unstaged", in: "node.checkUnpublished",
			old: `	if len(v.Publications) > 0 {
		return rpc.Errorf(`,
			new: `	if len(v.Publications) > 1 {
		return rpc.Errorf(`,
			breaks: "a volume is unstaged while a pod has it", tests: in("test/driver/requests", "TestCallsOutOfOrderAreRefused"),
		},
		{
			name: "node/single-writer-ignored-by-newcomer", in: "node.checkAnotherTarget",
			old: `wanted.Capability.SingleTarget() ||
`,
			new: `wanted.Capability.SingleTarget() && len(v.Publications) > 1 ||
`,
			breaks: "a second pod gets a volume for one pod alone", tests: in("test/driver/publishing", "TestEachAccessModeAllowsItsPublications"),
		},
		{
			name: "node/multi-node-joins-single-writer", in: "node.checkAnotherTarget",
			old:    `slices.ContainsFunc(v.Publications, func(p staged.Publication) bool { return p.Capability.SingleTarget() })`,
			new:    `slices.ContainsFunc(v.Publications, func(p staged.Publication) bool { return p.Capability.SingleTarget() && p.ReadOnly })`,
			breaks: "a publication of a mode for many joins one that has the volume alone",
			tests:  in("test/driver/publishing", "TestSingleNodeAttachmentIsNotJoined"),
		},
		{
			name: "node/replayed-growth-is-damage", in: "filesystem.copiesAreOlder",
			old:    `return older, nil`,
			new:    `return false, nil`,
			breaks: "an XFS whose growth was interrupted by a power failure is refused",
			tests:  in("internal/linux/filesystem", "TestGrownWithoutCopies"),
		},
		{
			name: "node/replay-leaves-copies", in: "filesystem.xfs.FinishReplay",
			old: `	grow := xfsGrowData{newBlocks: geometry.dataBlocks, inodesPercent: geometry.inodesPercent}
	if _, err :=`,
			new: `	grow := xfsGrowData{newBlocks: geometry.dataBlocks, inodesPercent: geometry.inodesPercent}
	if grow.newBlocks != 0 {
		return nil
	}
	if _, err :=`,
			breaks: "a replayed growth is not in the copies of the superblock",
			tests:  in("internal/linux/filesystem", "TestGrownWithoutCopies"),
		},
		{
			name: "node/template-keeps-its-uuid", in: "filesystem.template.write",
			old: `row.personalize(file, uuid.New())
	if err != nil {`,
			new: `row.personalize(file, uuid.NameSpaceDNS)
	if err != nil {`,
			breaks: "all volumes of one size have one UUID",
			tests:  in("internal/linux/filesystem", "TestTemplatesMakeSoundFilesystems"),
		},
		{
			name: "node/template-outlives-its-mkfs", in: "filesystem.newTemplateKey",
			old:    `key.tool, err = readVersion(tool)`,
			new:    `_, err = readVersion(tool)`,
			breaks: "after an upgrade of mkfs, filesystems are those of the former version",
			tests:  in("internal/linux/filesystem", "TestTemplatesFollowTheTool"),
		},
		{
			name: "node/template-of-an-xfs-keeps-its-log", in: "filesystem.personalizeXFS",
			old:    `copy(record[xfsRecordUUID:], id[:])`,
			new:    `_ = record`,
			breaks: "the kernel finds the log of another filesystem in a new XFS",
			tests:  in("internal/linux/filesystem", "TestTemplatesAgreeWithTheTools"),
		},
		{
			name: "node/data-formatted", in: "access.mayFormat",
			old:    `case !blank:`,
			new:    `case !blank && found != "":`,
			breaks: "an image that holds unknown data is formatted", tests: in("test/driver/staging", "TestImageWithDataIsNotFormatted"),
		},
		{
			name: "node/not-checked", in: "access.Image.prepareDevice",
			old:    `checked := !formatted && `,
			new:    `checked := formatted && `,
			breaks: "a damaged filesystem is mounted", tests: in("test/driver/staging", "TestDamagedFilesystemIsRefused", "TestCrashedFilesystemIsRecovered"),
		},
		{
			name: "node/copy-keeps-uuid", in: "access.Filesystems.checkAndGrow",
			old:    `if v.Copy {`,
			new:    `if v.Copy && v.IsReadOnly() {`,
			breaks: "a clone cannot be mounted beside its source", tests: in("test/driver/copies", "TestCopiesAreUsedSideBySide"),
		},
		{
			name: "node/foreign-mount-unmounted", in: "access.Targets.UnmountAllLayers",
			old: `if !isVolume {
			return errdefs`,
			new: `if !isVolume && point.Major != 0 && v.Capability.Block {
			return errdefs`,
			breaks: "what another program has mounted at a target is unmounted",
			tests:  in("test/driver/publishing", "TestAForeignMountAtTheTargetStays", "TestAnotherVolumeAtTheTargetIsRefused"),
		},
		{
			name: "node/target-of-the-co-removed", in: "access.Targets.RemoveTarget",
			old:    `if !publication.Made {`,
			new:    `if publication.TargetPath == "" {`,
			breaks: "a target directory that the CO made is removed", tests: in("test/driver/publishing", "TestTargetMadeByTheCOIsUsed"),
		},
		{
			name: "node/device-kept-after-unstaging", in: "access.RawDevice.Unstage",
			old:    `return r.devices.DetachAll(ctx, v)`,
			new:    `return nil`,
			breaks: "a raw block volume keeps its loop device", tests: in("test/driver/staging", "TestLifecycle"),
		},
		{
			name: "node/readers-device-kept", in: "node.lifecycle.endPublication",
			old: `	if err := l.devices.DetachUnusedReader(ctx, left); err != nil {
		return err
	}
`,
			new:    ``,
			breaks: "the second device of read-only publications is left", tests: in("test/driver/publishing", "TestReadOnlyBesideWritable"),
		},
		{
			name: "node/failed-staging-stays-recorded", in: "node.lifecycle.Stage",
			old:    `return errors.Join(err, l.forgetUnstaged(wanted))`,
			new:    `return err`,
			breaks: "a volume whose staging failed counts as in use",
			tests:  in("test/driver/staging", "TestAFailedStagingIsForgotten"),
		},
		{
			name: "node/staged-before-recorded", in: "node.lifecycle.Stage",
			old: `	if err := l.volumes.Record(ctx, wanted); err != nil {
		return err
	}

	if len(wanted.Publications) == 0 {`,
			new: `	defer func() { _ = l.volumes.Record(ctx, wanted) }()

	if len(wanted.Publications) == 0 {`,
			breaks: "a driver that is killed while it stages leaves a mount without a record",
			tests:  in("test/driver/staging", "TestStagingIsRecordedFirst"),
		},
		{
			name: "node/expanded-beyond-device", in: "device.Devices.Resize",
			old:    `if required := asked.GetRequiredBytes(); size < required {`,
			new:    `if required := asked.GetRequiredBytes(); size < required-required {`,
			breaks: "an expansion that has not happened is answered with success",
			tests:  in("test/driver/staging", "TestExpansionsRequireTheNode"),
		},
		{
			name: "node/filesystem-not-grown", in: "access.Image.Expand",
			old:    `return size, m.growMounted(ctx, v, size)`,
			new:    `return size, nil`,
			breaks: "an expanded volume's filesystem keeps its size", tests: in("test/driver/staging", "TestLifecycle"),
		},
		{
			name: "node/frozen-after-a-kill", in: "node.Service.Recover",
			old: `	s.freezer.ThawRecorded()
`,
			new:    ``,
			breaks: "a filesystem that a killed driver froze stays frozen", tests: command{pkg: "./test/driver/freeze", run: "^TestFreezeEndsAtTheNextStart$/^ext4$"},
		},
		{
			name: "node/devices-not-found-again", in: "device.Raw.Find",
			old:    `if known && v.ExposesRawDevice() {`,
			new:    `if known && v.ExposesRawDevice() && attachment.ReadOnly {`,
			breaks: "raw block volumes count as unstaged after a restart",
			tests:  in("test/driver/direct", "TestDirectOutlivesTheDriver"),
		},
		{
			name: "node/ephemeral-volumes-not-recovered", in: "node.Service.PoolServed",
			old: `	s.ephemeral.RemoveUnmounted(ctx, poolName)
`,
			new:    ``,
			breaks: "inline volumes of before a reboot keep their space", tests: in("test/driver/ephemeral", "TestEphemeralAfterAReboot"),
		},
		{
			name: "node/limits-not-applied-at-start", in: "node.Service.PoolServed",
			old: `		if v.Parameters.Pool != poolName {
			continue
		}

		if err := s.applyMutable(`,
			new: `		if v.Parameters.Pool == poolName {
			continue
		}

		if err := s.applyMutable(`,
			breaks: "limits and queues are not in force when the driver is ready after a restart",
			tests:  in("test/driver/modify", "TestQueueIsInForce"),
		},
		{
			name: "node/ephemeral-bytes-kept", in: "ephemeral.Volumes.remove",
			old: `	if err := stored.Discard(ctx, object); err != nil {
		return err
	}
`,
			new:    ``,
			breaks: "each inline volume leaves its bytes in the pool", tests: command{pkg: "./test/driver/ephemeral", run: "^TestEphemeralLifecycle$/^directory$"},
		},
		{
			name: "node/ephemeral-size-not-limited", in: "ephemeral.Volumes.checkLargest",
			old:    `r.SizeBytes > v.config.MaxVolumeBytes {`,
			new:    `r.SizeBytes > v.config.MaxVolumeBytes+r.SizeBytes {`,
			breaks: "a pod author gets a larger volume than the operator allows",
			tests:  in("test/driver/ephemeral", "TestInvalidEphemeralRequestsAreRefused", "TestEphemeralSizeIsEnforced", "TestAnotherEphemeralRequestConflicts"),
		},
		{
			name: "node/ephemeral-provision-leaks", in: "staged.InlineRecords.observe",
			old:    `r.provisioned.Add(old.Parameters.Pool, -old.SizeBytes)`,
			new:    `r.provisioned.Add(old.Parameters.Pool, 0)`,
			breaks: "the pool's capacity shrinks with each inline volume",
			tests:  in("test/driver/ephemeral", "TestEphemeralCountsForTheCapacity", "TestEphemeralLifecycle"),
		},
		{
			name: "node/directory-usage-is-the-pools", in: "access.withOwn",
			old:    `of.Bytes.Used, of.Bytes.Total = own.Bytes, own.Bytes+of.Bytes.Available`,
			new:    `of.Bytes.Total = own.Bytes + of.Bytes.Used + of.Bytes.Available`,
			breaks: "a directory volume's statistics are those of the whole pool", tests: in("test/driver/staging", "TestUsageIsOfTheVolume"),
		},
		{
			name: "node/stats-of-a-foreign-mount", in: "stats.Reader.mountedTarget",
			old:    `if r.config.Prober.Observations().IsVolumesMount(v.VolumeID, path, point.ID) {`,
			new:    `if r.config.Prober.Observations().IsVolumesMount(v.VolumeID, path, point.ID) || point.ID > 0 {`,
			breaks: "statistics of another filesystem are reported as the volume's", tests: in("test/driver/publishing", "TestStatsOfACoveredMount"),
		},
		{
			name: "node/ephemeral-mkfs-options-accepted", in: "ephemeral.Volumes.complete",
			old:    `if r.Parameters.MkfsOptions != "" && !v.config.MkfsOptions {`,
			new:    `if r.Parameters.MkfsOptions != "" && v.config.MkfsOptions {`,
			breaks: "the author of a pod chooses mkfs options although the operator does not allow it",
			tests:  in("test/driver/publishing", "TestInlineVolumeCannotSetTheErrorBehaviour"),
		},
		{
			name: "node/device-nodes-work", in: "staged.MountOptions",
			old:    `options = options.WithoutDevices()`,
			new:    `_ = options.WithoutDevices()`,
			breaks: "a device node that a volume holds opens the device of the host",
			tests:  in("test/driver/publishing", "TestDeviceNodesOfAVolumeCannotBeOpened"),
		},
	}
}

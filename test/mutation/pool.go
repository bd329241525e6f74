package main

// poolMutants are defects of the pools.
func poolMutants() []regression {
	return []regression{
		{
			name: "pool/new-image-not-synced", in: "pool.Images.sync",
			old: `	if err := file.Sync(); err != nil {
		return i.spaceError`,
			new: `	if err := error(nil); err != nil {
		return i.spaceError`,
			breaks: "an attached volume's image has another size after a power failure",
			tests:  in("test/driver/pools", "TestUnsyncedChangesAreNotAcknowledged", "TestAThickVolumeIsSyncedWhenItIsMade"),
		},
		{
			name: "pool/growth-not-synced", in: "pool.Images.growOnce",
			old: `	if err := file.Sync(); err != nil {
		return false,`,
			new: `	if err := error(nil); err != nil {
		return false,`,
			breaks: "an expansion is acknowledged and lost in a power failure",
			tests:  in("test/driver/pools", "TestUnsyncedChangesAreNotAcknowledged", "TestAThickVolumeIsSyncedWhenItIsMade"),
		},
		{
			name: "pool/new-filesystem-not-synced", in: "pool.Images.fillScratch",
			old:    `return fresh.Sync()`,
			new:    `return nil`,
			breaks: "a filesystem that was just made is lost in a power failure",
			tests:  in("test/driver/pools", "TestUnsyncedChangesAreNotAcknowledged", "TestAThickVolumeIsSyncedWhenItIsMade"),
		},
		{
			name: "pool/image-shrinks", in: "pool.grow",
			old:    `if info.Size() >= size {`,
			new:    `if info.Size() == size {`,
			breaks: "an image that is larger than requested is truncated",
			tests:  in("internal/pool", "TestSizedAtReportsEachOwnWrite", "TestFilledImageKeepsItsOwner", "TestCopiesOfImages", "TestCopiesOfDirectories", "TestRestoreCanBeLarger"),
		},
		{
			name: "pool/symlink-followed", in: "tree.OpenAt",
			old:    `flag|unix.O_NOFOLLOW|unix.O_CLOEXEC`,
			new:    `flag|unix.O_CLOEXEC`,
			breaks: "a symlink in the pool leads to another volume",
			tests:  in("internal/pool", "TestSymlinkIsNoVolume", "TestALockIsNotFollowedElsewhere"),
		},
		{
			name: "pool/any-id-accepted", in: "pool.checkID",
			old:    `if !volume.IsID(id) {`,
			new:    `if id == "" {`,
			breaks: "an id with a slash leaves the pool",
			tests:  in("internal/pool", "TestSizeIsOfTheStoredObject", "TestCopyOfAMissingSourceFails", "TestSnapshotsOfAPool"),
		},
		{
			name: "pool/orphan-in-use-removed", in: "pool.Images.removeUnused",
			old: `	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}

	if err != nil {`,
			new:    `	if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {`,
			breaks: "an image that a node has attached is removed at the controller's start",
			tests:  in("internal/pool", "TestAnEmptyImageInUseIsNoOrphan"),
		},
		{
			name: "pool/group-of-live-images", in: "pool.GroupCopy.CopyData",
			old:    `image.cloneFrom(images)`,
			new:    `image.cloneFrom(g.stored.root)`,
			breaks: "the members of a group are of different moments",
			tests:  in("internal/pool", "TestGroupCopyIsOfOnePointInTime"),
		},
		{
			name: "pool/two-make-one-image", in: "pool.scratch.lock",
			old:    `flock.TryLock(file, unix.LOCK_EX)`,
			new:    `flock.TryLock(file, unix.LOCK_SH)`,
			breaks: "what another process is making is cleared",
			tests:  in("internal/pool", "TestScratchInUseIsNoLeftover", "TestLeftoversOfACrashAreCleared", "TestScratchCopyIsReadAndAborted"),
		},
		{
			name: "pool/kept-scratch-name-is-a-leftover", in: "pool.scratch.claim",
			old:    `case statOf(held).Nlink > 1:`,
			new:    `case false:`,
			breaks: "a new image is emptied after a power failure on btrfs",
			tests:  in("internal/pool", "TestImageWithAScratchNameIsRecovered"),
		},
		{
			name: "pool/two-controllers", in: "pool.controllerLock.LockAsController",
			old:    `c.flock(file, unix.LOCK_EX)`,
			new:    `c.flock(file, unix.LOCK_SH)`,
			breaks: "two controllers serve one pool",
			tests:  in("internal/pool", "TestAPoolHasOneController"),
		},
		{
			name: "pool/served-without-locks", in: "pool.controllerLock.flock",
			old: `	case err != nil:
		return lockError(`,
			new: `	case err != nil && !flock.Unsupported(err):
		return lockError(`,
			breaks: "two controllers serve a pool on a filesystem without locks",
			tests:  in("test/driver/pools", "TestAPoolWithoutLocksHasNoController"),
		},
		{
			name: "pool/hard-links-copied-apart", in: "tree.Copier.file",
			old:    `err != nil || found.Nlink <= 1 {`,
			new:    `err != nil || found.Nlink <= 2 {`,
			breaks: "a snapshot of a directory has two files where the volume has one",
			tests:  in("internal/pool", "TestCopiesOfDirectories"),
		},
		{
			name: "pool/times-not-copied", in: "tree.Copier.inherit",
			old:    `return setTimes(to, name, found)`,
			new:    `return nil`,
			breaks: "files of a restored directory have the time of the restore",
			tests:  in("internal/pool", "TestCopiesOfDirectories"),
		},
		{
			name: "pool/copy-crosses-mounts", in: "tree.openHow",
			old:    `unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV |`,
			new:    `unix.RESOLVE_BENEATH |`,
			breaks: "what is mounted in a directory volume is copied into its snapshot",
			tests:  in("internal/pool", "TestCopyStopsAtMounts"),
		},
		{
			name: "pool/sparse-copy-misplaced", in: "filecopy.writeSparse",
			old:    `_, err := target.WriteAt(content[start:], at+int64(start))`,
			new:    `_, err := target.WriteAt(content[start:], at)`,
			breaks: "data behind a block of zeros are copied to the wrong offset",
			tests:  in("internal/pool/filecopy", "TestWriteSparse"),
		},
		{
			name: "pool/failed-copy-leaves-scratch", in: "pool.Copy.failed",
			old:    `, c.Abort())`,
			new:    `, c.close())`,
			breaks: "a copy that fails leaves its bytes in the pool",
			tests:  in("internal/pool", "TestCancelledCopyLeavesNothing", "TestFullPoolKeepsNoPartialCopy"),
		},
		{
			name: "pool/filled-image-changes-owner", in: "pool.copyOwner",
			old:    `return fresh.Chown(int(owner.Uid), int(owner.Gid))`,
			new:    `return nil`,
			breaks: "a controller without privilege cannot grow what a node has formatted",
			tests:  in("internal/pool", "TestFilledImageKeepsItsOwner"),
		},
		{
			name: "pool/replaced-pool-not-noticed", in: "pool.Pool.Probe",
			old:    `if !os.SameFile(found, opened) {`,
			new:    `if found.Mode() != opened.Mode() {`,
			breaks: "a pool whose filesystem was unmounted looks healthy",
			tests:  in("internal/pool", "TestProbeReportsThePoolsCondition"),
		},
		{
			name: "pool/identity-of-another-process-replaced", in: "pool.moveInto",
			old:    `int(directory.Fd()), to, unix.RENAME_NOREPLACE)`,
			new:    `int(directory.Fd()), to, 0)`,
			breaks: "of two processes that start with a new shared pool, one refuses it at its next start",
			tests:  in("internal/pool", "TestProcessesAgreeOnAnIdentity"),
		},
		{
			name: "pool/own-identity-assumed", in: "pool.makeIdentity",
			old: `return readIdentity(root)`, new: `return wanted, nil`,
			breaks: "of two processes that start with a new shared pool, one refuses it at its next start",
			tests:  in("internal/pool", "TestProcessesAgreeOnAnIdentity"),
		},
		{
			name: "pool/full-pool-is-another-error", in: "pool.label.spaceError",
			old:    `if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {`,
			new:    `if errors.Is(err, unix.EDQUOT) {`,
			breaks: "a full pool is INTERNAL and not RESOURCE_EXHAUSTED",
			tests:  in("internal/pool", "TestFullPoolKeepsNoPartialCopy"),
		},
		{
			name: "pool/provisioned-beyond-free-space", in: "pool.Capacity.unprovisioned",
			old:    `return min(left, times(c.Available, overcommit))`,
			new:    `return left`,
			breaks: "more is provisioned than overcommit times what is available",
			tests:  in("internal/pool", "TestPoolIsMeasuredOnlyIfDecisive"),
		},
		{
			name: "pool/foreign-data-is-provisioned", in: "pool.Capacity.unprovisioned",
			old:    `left := times(c.Available+c.Allocated, overcommit) - provisioned`,
			new:    `left := times(c.Total, overcommit) - provisioned`,
			breaks: "a pool that shares its filesystem with other data is overcommitted",
			tests:  in("test/driver/pools", "TestForeignDataIsNotProvisioned"),
		},
		{
			name: "pool/shared-blocks-are-counted-twice", in: "pool.Allocation.addExtent",
			old:    `case found.Shared && found.Located:`,
			new:    `case false:`,
			breaks: "blocks that a snapshot shares are not counted as the volumes' own",
			tests:  in("test/driver/pools", "TestForeignDataIsNotProvisioned"),
		},
		{
			name: "pool/failed-measurement-is-zero", in: "pool.Admission.Admit",
			old:    `known[refused], err = a.measure(ctx, refused)`,
			new:    `known[refused], _ = a.measure(ctx, refused); err = nil`,
			breaks: "a pool that cannot be measured is taken for full",
			tests:  in("internal/pool", "TestPoolIsMeasuredOnlyIfDecisive"),
		},
		{
			name: "pool/nearly-full-too-early", in: "pool.Capacity.NearlyFull",
			old:    `return c.Available < min(`,
			new:    `return c.Available < max(`,
			breaks: "a large pool with enough space is reported as nearly full",
			tests:  in("test/driver/health", "TestHealthOfAPoolThatFillsUp"),
		},
		{
			name: "pool/flags-not-cleared", in: "tree.clearFlags",
			old:    `if err != nil || flags&(immutableFlag|appendOnlyFlag) == 0 {`,
			new:    `if err != nil || flags != 0 {`,
			breaks: "one immutable file keeps a volume from being deleted",
			tests:  in("test/driver/removal", "TestImmutableFilesAreRemoved"),
		},
		{
			name: "pool/removal-opens-each-level", in: "tree.remover.entry",
			old:    `if level >= maxLevels {`,
			new:    `if level >= 50*maxLevels {`,
			breaks: "a deep directory takes all descriptors of the driver",
			tests:  command{pkg: "./test/driver/removal", run: "^TestDeepTreesAreRemovedWithFewDescriptors$/^volume$"},
		},
		{
			name: "pool/missing-identity-accepted", in: "pool.identification.identify",
			old:    `return i.mismatch("there is no " + layout.Identity)`,
			new:    `return nil`,
			breaks: "a mount point without its mount is served as an empty pool",
			tests:  in("test/driver/pools", "TestUnmountedPoolIsNotServed"),
		},
		{
			name: "pool/another-identity-accepted", in: "pool.identification.identify",
			old:    `case found != i.id:`,
			new:    `case found != i.id && found == "":`,
			breaks: "a pool is served under the name of another one",
			tests:  in("test/driver/pools", "TestSwappedPoolsAreRefused"),
		},
		{
			name: "pool/lease-awaited", in: "tree.openForReading",
			old:    `flag |= os.O_RDONLY | unix.O_NONBLOCK`,
			new:    `flag |= os.O_RDONLY`,
			breaks: "a workload with a lease on a file delays a snapshot for 45 s",
			tests:  in("internal/pool", "TestALeaseEndsACopy"),
		},
		{
			name: "pool/project-limit-lowered", in: "quota.raised",
			old:    `Bytes: max(current.Bytes, bytes), Inodes`,
			new:    `Bytes: bytes, Inodes`,
			breaks: "a call with the size before an expansion lowers the limit of a directory",
			tests:  in("internal/pool/quota", "TestLimits"),
		},
		{
			name: "pool/any-project-accepted", in: "quota.isProjectOf",
			old:    `if each == project {`,
			new:    `if each == project || project != 0 {`,
			breaks: "the owner of a directory chooses the project that is limited and removed with it",
			tests:  in("internal/pool/quota", "TestProjectIDs"),
		},
	}
}

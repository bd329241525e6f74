package main

// poolMutants are defects of the pools.
func poolMutants() []mutant {
	return []mutant{
		{
			name: "pool/new-image-not-synced", file: "pkg/pool/image.go",
			old: `	if err := file.Sync(); err != nil {
		return p.spaceError`,
			new: `	if err := error(nil); err != nil {
		return p.spaceError`,
			breaks: "an attached volume's image has another size after a power failure",
			tests:  in("test/driver/pools", "TestNothingIsAcknowledgedThatWasNotSynced", "TestAThickVolumeIsSyncedWhenItIsMade"),
		},
		{
			name: "pool/growth-not-synced", file: "pkg/pool/image.go",
			old: `	if err := file.Sync(); err != nil {
		return false,`,
			new: `	if err := error(nil); err != nil {
		return false,`,
			breaks: "an expansion is acknowledged and lost in a power failure",
			tests:  in("test/driver/pools", "TestNothingIsAcknowledgedThatWasNotSynced", "TestAThickVolumeIsSyncedWhenItIsMade"),
		},
		{
			name: "pool/new-filesystem-not-synced", file: "pkg/pool/image.go",
			old: `	if err == nil {
		err = fresh.Sync()
	}`,
			new: `	if err == nil {
		err = error(nil)
	}`,
			breaks: "a filesystem that was just made is lost in a power failure",
			tests:  in("test/driver/pools", "TestNothingIsAcknowledgedThatWasNotSynced", "TestAThickVolumeIsSyncedWhenItIsMade"),
		},
		{
			name: "pool/image-shrinks", file: "pkg/pool/image.go",
			old:    `if info.Size() >= size {`,
			new:    `if info.Size() == size {`,
			breaks: "an image that is larger than requested is truncated",
			tests:  in("pkg/pool", "TestSizedAt.*", "TestFilled.*", "TestCopies.*", "TestRestore.*"),
		},
		{
			name: "pool/symlink-followed", file: "pkg/pool/tree/open.go",
			old:    `flag|unix.O_NOFOLLOW|unix.O_CLOEXEC`,
			new:    `flag|unix.O_CLOEXEC`,
			breaks: "a symlink in the pool leads to another volume",
			tests:  in("pkg/pool", "TestSymlinkIsNoVolume", "TestALockIsNotFollowedElsewhere"),
		},
		{
			name: "pool/any-id-accepted", file: "pkg/pool/pool.go",
			old:    `if !volume.IsID(id) {`,
			new:    `if id == "" {`,
			breaks: "an id with a slash leaves the pool",
			tests:  in("pkg/pool", "TestSizeIsThatOfWhatIsThere", "TestCopyOfWhatIsNotThere", "TestSnapshotsOfAPool", "Test.*ID.*"),
		},
		{
			name: "pool/orphan-in-use-removed", file: "pkg/pool/list.go",
			old: `	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}

	if err != nil {`,
			new:    `	if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {`,
			breaks: "an image that a node has attached is removed at the controller's start",
			tests:  in("pkg/pool", "TestAnEmptyImageInUseIsNoOrphan"),
		},
		{
			name: "pool/group-of-live-images", file: "pkg/pool/groupcopy.go",
			old:    `member.cloneFrom(images)`,
			new:    `member.cloneFrom(g.pool.images)`,
			breaks: "the members of a group are of different moments",
			tests:  in("pkg/pool", "TestGroupCopyIsOfOnePointInTime"),
		},
		{
			name: "pool/two-make-one-image", file: "pkg/pool/scratch.go",
			old:    `flock.TryLock(file, unix.LOCK_EX)`,
			new:    `flock.TryLock(file, unix.LOCK_SH)`,
			breaks: "what another process is making is cleared",
			tests:  in("pkg/pool", "TestWhatIsBeingMadeIsNoLeftover", "TestLeftoversOfACrashAreCleared", "TestTheImageInTheMaking"),
		},
		{
			name: "pool/kept-scratch-name-is-a-leftover", file: "pkg/pool/scratch.go",
			old:    `case hasOtherName(held):`,
			new:    `case false:`,
			breaks: "a new image is emptied after a power failure on btrfs",
			tests:  in("pkg/pool", "TestImageThatKeptItsScratchName"),
		},
		{
			name: "pool/two-controllers", file: "pkg/pool/lock.go",
			old:    `p.flock(file, unix.LOCK_EX)`,
			new:    `p.flock(file, unix.LOCK_SH)`,
			breaks: "two controllers serve one pool",
			tests:  in("pkg/pool", "TestAPoolHasOneController"),
		},
		{
			name: "pool/served-without-locks", file: "pkg/pool/lock.go",
			old: `	case err != nil:
		return lockError(`,
			new: `	case err != nil && !flock.Unsupported(err):
		return lockError(`,
			breaks: "two controllers serve a pool on a filesystem without locks",
			tests:  in("test/driver/pools", "TestAPoolWithoutLocks.*"),
		},
		{
			name: "pool/hard-links-copied-apart", file: "pkg/pool/tree/copy.go",
			old:    `if err == nil && found.Nlink > 1 {`,
			new:    `if err == nil && found.Nlink > 2 {`,
			breaks: "a snapshot of a directory has two files where the volume has one",
			tests:  in("pkg/pool", "TestCopiesOfDirectories"),
		},
		{
			name: "pool/times-not-copied", file: "pkg/pool/tree/attributes.go",
			old:    `return setTimes(to, name, found)`,
			new:    `return nil`,
			breaks: "files of a restored directory have the time of the restore",
			tests:  in("pkg/pool", "TestCopiesOfDirectories"),
		},
		{
			name: "pool/copy-crosses-mounts", file: "pkg/pool/tree/open.go",
			old:    `unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV,`,
			new:    `unix.RESOLVE_BENEATH,`,
			breaks: "what is mounted in a directory volume is copied into its snapshot",
			tests:  in("pkg/pool", "TestCopyStopsAtMounts"),
		},
		{
			name: "pool/sparse-copy-misplaced", file: "pkg/pool/filecopy/copier.go",
			old:    `_, err := target.WriteAt(content[start:], at+int64(start))`,
			new:    `_, err := target.WriteAt(content[start:], at)`,
			breaks: "data behind a block of zeros are copied to the wrong offset",
			tests:  in("pkg/pool/filecopy", "TestWriteSparse"),
		},
		{
			name: "pool/failed-copy-leaves-scratch", file: "pkg/pool/copy.go",
			old:    `, c.Abort())`,
			new:    `, c.close())`,
			breaks: "a copy that fails leaves its bytes in the pool",
			tests:  in("pkg/pool", "TestCancelledCopyLeavesNothing", "TestFullPoolKeepsNothingHalfMade"),
		},
		{
			name: "pool/filled-image-changes-owner", file: "pkg/pool/image.go",
			old:    `return fresh.Chown(int(owner.Uid), int(owner.Gid))`,
			new:    `return nil`,
			breaks: "a controller without privilege cannot grow what a node has formatted",
			tests:  in("pkg/pool", "TestFilledImageKeepsItsOwner"),
		},
		{
			name: "pool/replaced-pool-not-noticed", file: "pkg/pool/probe.go",
			old:    `if !os.SameFile(found, opened) {`,
			new:    `if found.Mode() != opened.Mode() {`,
			breaks: "a pool whose filesystem was unmounted looks healthy",
			tests:  in("pkg/pool", "TestLookSaysWhatIsTheMatterWithThePool"),
		},
		{
			name: "pool/identity-of-another-process-replaced", file: "pkg/pool/identity.go",
			old:    `err := root.Link(from, to)`,
			new:    `err := root.Rename(from, to)`,
			breaks: "of two processes that start with a new shared pool, one refuses it at its next start",
			tests:  in("pkg/pool", "TestProcessesAgreeOnAnIdentity"),
		},
		{
			name: "pool/own-identity-assumed", file: "pkg/pool/identity.go",
			old: `	return readIdentity(root)
}

func writeAside`,
			new: `	return wanted, nil
}

func writeAside`,
			breaks: "of two processes that start with a new shared pool, one refuses it at its next start",
			tests:  in("pkg/pool", "TestProcessesAgreeOnAnIdentity"),
		},
		{
			name: "pool/full-pool-is-another-error", file: "pkg/pool/pool.go",
			old:    `if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {`,
			new:    `if errors.Is(err, unix.EDQUOT) {`,
			breaks: "a full pool is INTERNAL and not RESOURCE_EXHAUSTED",
			tests:  in("pkg/pool", "TestFullPoolKeepsNothingHalfMade"),
		},
		{
			name: "pool/provisioned-beyond-free-space", file: "pkg/pool/admission.go",
			old:    `return min(left, times(c.Available, overcommit))`,
			new:    `return left`,
			breaks: "more is provisioned than overcommit times what is available",
			tests:  in("pkg/pool", "TestPoolIsMeasuredOnlyWhereItDecides"),
		},
		{
			name: "pool/foreign-data-is-provisioned", file: "pkg/pool/admission.go",
			old:    `left := times(c.Available+c.Allocated, overcommit) - provisioned`,
			new:    `left := times(c.Total, overcommit) - provisioned`,
			breaks: "a pool that shares its filesystem with other data is overcommitted",
			tests:  in("test/driver/pools", "TestForeignDataIsNotProvisioned"),
		},
		{
			name: "pool/shared-blocks-are-counted-twice", file: "pkg/pool/allocation.go",
			old:    `case found.Shared && found.Located:`,
			new:    `case false:`,
			breaks: "blocks that a snapshot shares are not counted as the volumes' own",
			tests:  in("test/driver/pools", "TestForeignDataIsNotProvisioned"),
		},
		{
			name: "pool/failed-measurement-is-zero", file: "pkg/pool/admission.go",
			old:    `if measured[refused], err = a.measure(ctx, refused); err != nil {`,
			new:    `if measured[refused], err = a.measure(ctx, refused); false {`,
			breaks: "a pool that cannot be measured is taken for full",
			tests:  in("pkg/pool", "TestPoolIsMeasuredOnlyWhereItDecides"),
		},
		{
			name: "pool/nearly-full-too-early", file: "pkg/pool/capacity.go",
			old:    `return c.Available < min(`,
			new:    `return c.Available < max(`,
			breaks: "a large pool with enough space is reported as nearly full",
			tests:  in("test/driver/health", "TestHealthOfAPoolThatFillsUp"),
		},
		{
			name: "pool/flags-not-cleared", file: "pkg/pool/tree/entry.go",
			old:    `if err != nil || flags&(immutableFlag|appendOnlyFlag) == 0 {`,
			new:    `if err != nil || flags != 0 {`,
			breaks: "one immutable file keeps a volume from being deleted",
			tests:  in("test/driver/removal", "TestWhatHasFlagsIsRemoved"),
		},
		{
			name: "pool/removal-opens-each-level", file: "pkg/pool/tree/remove.go",
			old:    `if level >= maxLevels {`,
			new:    `if level >= 50*maxLevels {`,
			breaks: "a deep directory takes all descriptors of the driver",
			tests:  command{pkg: "./test/driver/removal", run: "^TestWhatIsDeepIsRemovedWithFewDescriptors$/^volume$"},
		},
		{
			name: "pool/missing-identity-accepted", file: "pkg/pool/identity.go",
			old:    `return p.mismatch("there is no " + layout.Identity)`,
			new:    `return nil`,
			breaks: "a mount point without its mount is served as an empty pool",
			tests:  in("test/driver/pools", "TestAPoolThatIsNotMounted"),
		},
		{
			name: "pool/another-identity-accepted", file: "pkg/pool/identity.go",
			old:    `case found != p.identity:`,
			new:    `case found != p.identity && found == "":`,
			breaks: "a pool is served under the name of another one",
			tests:  in("test/driver/pools", "TestTwoPoolsThatChangePlaces"),
		},
		{
			name: "pool/lease-awaited", file: "pkg/pool/tree/open.go",
			old:    `flag |= os.O_RDONLY | unix.O_NONBLOCK`,
			new:    `flag |= os.O_RDONLY`,
			breaks: "a workload with a lease on a file delays a snapshot for 45 s",
			tests:  in("pkg/pool", "TestALeaseEndsACopy"),
		},
		{
			name: "pool/project-limit-lowered", file: "pkg/pool/quota/projectid.go",
			old:    `Bytes: max(current.Bytes, bytes), Inodes`,
			new:    `Bytes: bytes, Inodes`,
			breaks: "a call with the size before an expansion lowers the limit of a directory",
			tests:  in("pkg/pool/quota", "TestLimits"),
		},
		{
			name: "pool/any-project-accepted", file: "pkg/pool/quota/projectid.go",
			old:    `if each == project {`,
			new:    `if each == project || project != 0 {`,
			breaks: "the owner of a directory chooses the project that is limited and removed with it",
			tests:  in("pkg/pool/quota", "TestProjectIDs"),
		},
	}
}

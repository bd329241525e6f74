package main

// directMutants are defects of volumes that a virtual machine mounts.
func directMutants() []regression {
	root := func(tests ...string) command { return in("internal/kata", tests...) }
	return []regression{
		{
			name: "direct/symlink-followed", in: "kata.openIn",
			old:    `flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|`,
			new:    `flags|unix.O_NONBLOCK|`,
			breaks: "a symlink in the runtime's directory leads to another entry", tests: root("TestNoSymlinkIsFollowed"),
		},
		{
			name: "direct/root-writable-by-others", in: "kata.checkRoot",
			old:    `case stat.Mode&othersWrite != 0:`,
			new:    `case stat.Mode&othersWrite == othersWrite:`,
			breaks: "a group that can write the root chooses the guest's device", tests: root("TestRootWritableByOthersIsRefused"),
		},
		{
			name: "direct/root-of-another-user", in: "kata.checkRoot",
			old:    `case int(stat.Uid) != os.Geteuid():`,
			new:    `case int(stat.Uid) < os.Geteuid():`,
			breaks: "another user's directory is trusted", tests: root("TestARootOfAnotherUserIsRefused"),
		},
		{
			name: "direct/stale-sandbox-kept", in: "kata.Root.Put",
			old:    `return r.put(a, clearEntry)`,
			new:    `return r.put(a, func(*os.File) error { return nil })`,
			breaks: "a new assignment counts as the earlier guest's", tests: root("TestPutReplacesTheAssignment"),
		},
		{
			name: "direct/oldest-sandbox", in: "kata.findSandbox",
			old:    `sandbox == "" || at.After(newest)`,
			new:    `sandbox == "" || newest.After(at)`,
			breaks: "a guest that was replaced is asked instead of the new one", tests: root("TestTheNewestSandboxHasTheVolume"),
		},
		{
			name: "direct/assignment-removed-first", in: "kata.removeEntry",
			old:    `errors.Join(clearEntry(dir), unlink(dir, mountInfoFile, 0))`,
			new:    `errors.Join(unlink(dir, mountInfoFile, 0), clearEntry(dir))`,
			breaks: "a crash leaves a sandbox's file that is never listed", tests: root("TestAssignmentIsRemovedLast"),
		},
		{
			name: "direct/temporary-file-left", in: "kata.Root.Remove",
			old:    `errors.Join(removeEntry(root, name), unlink(root, temporaryName(name), 0))`,
			new:    `removeEntry(root, name)`,
			breaks: "a file that a killed writer left stays for ever", tests: root("TestLeftoversOfAKilledWriterAreRemoved"),
		},
		{
			name: "direct/shortest-host-path", in: "kata.ParseHostPaths",
			old:    `return len(b.from) - len(a.from) })`,
			new:    `return len(a.from) - len(b.from) })`,
			breaks: "the runtime is given a path that is not the device's", tests: root("TestTheLongestHostPathIsReplaced"),
		},
		{
			name: "direct/staged-while-a-guest-has-it", in: "direct.Access.stage",
			old: `	if err := d.Guard.CheckNoGuest(v); err != nil {
		return err
	}
`,
			new:    ``,
			breaks: "host and guest write one filesystem", tests: in("test/driver/direct", "TestDirectWithoutRecords", "TestDirectIsUnpublishedWithoutRecords"),
		},
		{
			name: "direct/staged-while-the-device-is-open", in: "direct.Access.stage",
			old: `	if err := d.Guard.checkNotAttached(v); err != nil {
		return err
	}
`,
			new:    ``,
			breaks: "the filesystem is checked while a guest still has it",
			tests:  in("test/driver/direct", "TestDirectIsKeptByItsGuest", "TestDirectIsNotUnpublishedByOthers"),
		},
		{
			name: "direct/guest-writes-read-only-volume", in: "direct.Assignments.assignment",
			old:    `return flag == "rw" || flag == "ro" }), "ro")`,
			new:    `return flag == "ro" }), "rw")`,
			breaks: "a guest mounts a read-only volume writable", tests: in("test/driver/direct", "TestDirectReadOnlyPublicationIsRefused", "TestDirectReaderHasOneDevice"),
		},
		{
			name: "direct/assignment-left", in: "direct.Access.Unpublish",
			old:    `d.config.Runtimes.Root.Remove(p.TargetPath), d.RemoveTarget(p))`,
			new:    `d.RemoveTarget(p))`,
			breaks: "the runtime gives a later pod the device of an earlier one", tests: in("test/driver/direct", "TestDirectLifecycle"),
		},
		{
			name: "direct/number-of-a-lost-device-trusted", in: "device.Raw.verify",
			old:    `attached && now.Sequence != sequence {`,
			new:    `attached && now.Sequence == 0 {`,
			breaks: "a pod gets the image that now has the number of a lost device",
			tests:  in("test/driver/health", "TestReusedLoopNumberIsDetected"),
		},
		{
			name: "direct/forged-file-stays", in: "direct.Assignments.restoreMount",
			old:    `point.SuperReadOnly && err == nil && bytes.Equal(shown, plugin) {`,
			new:    `point.SuperReadOnly && err == nil && bytes.HasPrefix(shown, plugin[:1]) {`,
			breaks: "what a container has written for the runtime is kept", tests: in("test/driver/direct", "TestForgedAssignmentIsReplaced"),
		},
	}
}

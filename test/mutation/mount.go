package main

// mountMutants are defects of mounting.
func mountMutants() []regression {
	tests := wholePackage("internal/linux/mount")

	return []regression{
		{
			name: "mount/bind-not-read-only", in: "mount.Bind",
			old:    `Attr_set: opts.set, Attr_clr`,
			new:    `Attr_set: opts.set &^ unix.MOUNT_ATTR_RDONLY, Attr_clr`,
			breaks: "a read-only publication can be written", tests: tests,
		},
		{
			name: "mount/filesystem-not-read-only", in: "mount.Options.configure",
			old:    `if o.ReadOnly() {`,
			new:    `if o.set == unix.MOUNT_ATTR_RDONLY && len(o.parameters) > 1 {`,
			breaks: "a filesystem on a read-only device is mounted writable", tests: tests,
		},
		{
			name: "mount/binds-what-is-beneath", in: "mount.Bind",
			old:    `unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH`,
			new:    `unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH | unix.AT_RECURSIVE`,
			breaks: "mounts beneath a volume appear at its target", tests: tests,
		},
		{
			name: "mount/values-in-messages", in: "mount.Options.redact",
			old:    `if len(parameter.value) >= sensitive {`,
			new:    `if len(parameter.value) > sensitive*sensitive {`,
			breaks: "the value of a mount flag gets into an error message", tests: tests,
		},
		{
			name: "mount/lazy-unmount", in: "mount.Target.Unmount",
			old:    `unix.UMOUNT_NOFOLLOW)`,
			new:    `unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)`,
			breaks: "a volume that is still written to looks free", tests: tests,
		},
		{
			name: "mount/symlinks-followed", in: "mount.resolveStrictly",
			old:    `unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS |`,
			new:    `unix.RESOLVE_BENEATH |`,
			breaks: "a symlink in a target path leads somewhere else", tests: tests,
		},
		{
			name: "mount/dot-segments-accepted", in: "mount.checkPath",
			old:    `case segment == "." || segment == "..":`,
			new:    `case segment == ".":`,
			breaks: "a path with .. is accepted", tests: tests,
		},
		{
			name: "mount/remount-flag-accepted", in: "mount.forbiddenReason",
			old:    `case "bind", "rbind", "move", "remount":`,
			new:    `case "bind", "rbind", "move":`,
			breaks: "a flag that does something else than mount is handed to the filesystem", tests: tests,
		},
		{
			name: "mount/failing-mount-counts-as-none", in: "mount.Target.mountedOnce",
			old: `case err != nil || stat.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 ||`,
			new: `case err != nil:
		return Point{}, false, nil
	case stat.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 ||`,
			breaks: "a mount whose filesystem fails looks unmounted", tests: tests,
		},
		{
			name: "mount/file-with-content-removed", in: "mount.Target.Remove",
			old:    `case stat.Size > 0:`,
			new:    `case stat.Size < 0:`,
			breaks: "a user's file at the target is deleted", tests: tests,
		},
		{
			name: "mount/reserved-space-counts-as-available", in: "mount.UsageOf",
			old:    `Available: int64(stat.Bavail) * size,`,
			new:    `Available: int64(stat.Bfree) * size,`,
			breaks: "NodeGetVolumeStats reports space that a pod cannot get", tests: tests,
		},
		{
			name: "mount/secret-files-readable", in: "mount.privateMode",
			old:    `privateMode    = 0o600`,
			new:    `privateMode    = 0o644`,
			breaks: "files for the runtime can be read by users other than root", tests: tests,
		},
		{
			name: "mount/image-chooses-errors", in: "mount.Options.withSafeErrors",
			old:    `if fsType == "ext4" && !given {`,
			new:    `if fsType == "" && !given {`,
			breaks: "the superblock of a crafted ext4 can make the machine panic",
			tests:  in("test/driver/publishing", "TestImageCannotSetTheErrorBehaviour"),
		},
		{
			name: "mount/panic-flag-not-recognized", in: "mount.Options.PanicsOnError",
			old:    `&& p.value == "panic"`,
			new:    `&& p.value == ""`,
			breaks: "the author of a pod can have an error of an inline volume make the machine panic",
			tests:  in("test/driver/publishing", "TestInlineVolumeCannotSetTheErrorBehaviour"),
		},
		{
			name: "mount/busy-while-forking", in: "mount.Detached.makeReadOnly",
			old:    `if err := retryBusy(busyAttempts, func() error { return makeSuperblockReadOnly(root) }); err != nil {`,
			new:    `if err := makeSuperblockReadOnly(root); err != nil {`,
			breaks: "NodePublishVolume of a direct volume fails while a tool is started for another volume",
			tests:  in("internal/linux/mount", "TestSealingAwaitsAChildThatIsBeingForked"),
		},
	}
}

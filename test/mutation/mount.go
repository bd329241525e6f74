package main

// mountMutants are defects of mounting.
func mountMutants() []mutant {
	tests := in("internal/linux/mount", "Test.*")

	return []mutant{
		{
			name: "mount/bind-not-read-only", file: "internal/linux/mount/detached.go",
			old:    `Attr_set: opts.set, Attr_clr`,
			new:    `Attr_set: opts.set &^ unix.MOUNT_ATTR_RDONLY, Attr_clr`,
			breaks: "a read-only publication can be written", tests: tests,
		},
		{
			name: "mount/filesystem-not-read-only", file: "internal/linux/mount/detached.go",
			old:    `if o.ReadOnly() {`,
			new:    `if o.set == unix.MOUNT_ATTR_RDONLY && len(o.parameters) > 1 {`,
			breaks: "a filesystem on a read-only device is mounted writable", tests: tests,
		},
		{
			name: "mount/binds-what-is-beneath", file: "internal/linux/mount/detached.go",
			old:    `unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH`,
			new:    `unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH | unix.AT_RECURSIVE`,
			breaks: "mounts beneath a volume appear at its target", tests: tests,
		},
		{
			name: "mount/values-in-messages", file: "internal/linux/mount/detached.go",
			old:    `if len(parameter.value) >= sensitive {`,
			new:    `if len(parameter.value) > sensitive*sensitive {`,
			breaks: "the value of a mount flag gets into an error message", tests: tests,
		},
		{
			name: "mount/lazy-unmount", file: "internal/linux/mount/unmount.go",
			old:    `unix.UMOUNT_NOFOLLOW)`,
			new:    `unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)`,
			breaks: "a volume that is still written to looks free", tests: tests,
		},
		{
			name: "mount/symlinks-followed", file: "internal/linux/mount/alloweddirs.go",
			old:    `unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS |`,
			new:    `unix.RESOLVE_BENEATH |`,
			breaks: "a symlink in a target path leads somewhere else", tests: tests,
		},
		{
			name: "mount/dot-segments-accepted", file: "internal/linux/mount/alloweddirs.go",
			old:    `case segment == "." || segment == "..":`,
			new:    `case segment == ".":`,
			breaks: "a path with .. is accepted", tests: tests,
		},
		{
			name: "mount/remount-flag-accepted", file: "internal/linux/mount/flags.go",
			old:    `case "bind", "rbind", "move", "remount":`,
			new:    `case "bind", "rbind", "move":`,
			breaks: "a flag that does something else than mount is handed to the filesystem", tests: tests,
		},
		{
			name: "mount/failing-mount-counts-as-none", file: "internal/linux/mount/observe.go",
			old: `case err != nil || stat.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 ||`,
			new: `case err != nil:
		return Point{}, false, nil
	case stat.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 ||`,
			breaks: "a mount whose filesystem fails looks unmounted", tests: tests,
		},
		{
			name: "mount/file-with-content-removed", file: "internal/linux/mount/target.go",
			old:    `case stat.Size > 0:`,
			new:    `case stat.Size < 0:`,
			breaks: "a user's file at the target is deleted", tests: tests,
		},
		{
			name: "mount/reserved-space-counts-as-available", file: "internal/linux/mount/usage.go",
			old:    `Available: int64(stat.Bavail) * size,`,
			new:    `Available: int64(stat.Bfree) * size,`,
			breaks: "NodeGetVolumeStats reports space that a pod cannot get", tests: tests,
		},
		{
			name: "mount/secret-files-readable", file: "internal/linux/mount/tmpfs.go",
			old:    `privateMode    = 0o600`,
			new:    `privateMode    = 0o644`,
			breaks: "files for the runtime can be read by users other than root", tests: tests,
		},
		{
			name: "mount/image-chooses-errors", file: "internal/linux/mount/flags.go",
			old:    `if fsType == "ext4" && !given {`,
			new:    `if fsType == "" && !given {`,
			breaks: "the superblock of a crafted ext4 can make the machine panic",
			tests:  in("test/driver/publishing", "TestAnImageDoesNotChooseWhatAnErrorDoes"),
		},
		{
			name: "mount/panic-flag-not-recognized", file: "internal/linux/mount/flags.go",
			old:    `&& p.value == "panic"`,
			new:    `&& p.value == ""`,
			breaks: "the author of a pod can have an error of an inline volume make the machine panic",
			tests:  in("test/driver/publishing", "TestAPodAuthorDoesNotChooseWhatAnErrorDoes"),
		},
		{
			name: "mount/busy-while-forking", file: "internal/linux/mount/tmpfs.go",
			old:    `if err := retryBusy(busyAttempts, func() error { return makeSuperblockReadOnly(root) }); err != nil {`,
			new:    `if err := makeSuperblockReadOnly(root); err != nil {`,
			breaks: "NodePublishVolume of a direct volume fails while a tool is started for another volume",
			tests:  in("internal/linux/mount", "TestSealingAwaitsAChildThatIsBeingForked"),
		},
	}
}

package main

// blockdevMutants are defects of loop devices.
func blockdevMutants() []regression {
	tests := wholePackage("internal/linux/loop")

	return []regression{
		{
			name: "blockdev/buffered-io", in: "loop.configOf",
			old:    `config.Info.Flags |= unix.LO_FLAGS_DIRECT_IO`,
			new:    `config.Info.Flags |= 0`,
			breaks: "pages of each volume are cached twice", tests: in("test/driver/pools", "TestLoopDevicesDoDirectIO"),
		},
		{
			name: "blockdev/no-autoclear", in: "loop.configOf",
			old:    `config.Info.Flags |= unix.LO_FLAGS_AUTOCLEAR`,
			new:    `config.Info.Flags |= 0`,
			breaks: "a device outlives its mount after a crash", tests: tests,
		},
		{
			name: "blockdev/other-block-size", in: "loop.configOf",
			old:    `Size: uint32(o.BlockSize)}`,
			new:    `Size: 512}`,
			breaks: "the sector size is not the one that the filesystem was made with", tests: tests,
		},
		{
			name: "blockdev/writable-device-shared-with-reader", in: "loop.compatible",
			old:    `return status.ReadOnly == o.ReadOnly && status.BlockSize`,
			new:    `return status.BlockSize`,
			breaks: "a read-only attach returns the writable device", tests: tests,
		},
		{
			name: "blockdev/own-device-shared", in: "loop.Loops.adopt",
			old:    `if o.Exclusive || !compatible(status, o) {`,
			new:    `if !compatible(status, o) {`,
			breaks: "two nodes on one machine use one device, and one detaches it from both", tests: tests,
		},
		{
			name: "blockdev/lock-for-writing-shared", in: "loop.image.lock",
			old:    `free, err := i.tryFlock(unix.LOCK_EX)`,
			new:    `free, err := i.tryFlock(unix.LOCK_SH)`,
			breaks: "two nodes attach one image for writing", tests: tests,
		},
		{
			name: "blockdev/found-by-inode-alone", in: "loop.Loops.statusIfMatch",
			old:    `attached && status.Backing == wanted.identity, err`,
			new:    `attached && status.Backing.Inode == wanted.identity.Inode, err`,
			breaks: "an image of another filesystem with the same inode number counts as this one", tests: tests,
		},
		{
			name: "blockdev/detaches-any-image", in: "loop.Loops.requestDetach",
			old:    `if same, err := l.isSame(node, sequence, observed); err != nil || !same {`,
			new:    `if _, err := l.isSame(node, sequence, observed); err != nil {`,
			breaks: "the device of another volume is detached", tests: tests,
		},
		{
			name: "blockdev/detach-not-awaited", in: "loop.Loops.AwaitDetached",
			old:    `for pause := newBackoff(); l.sysfs.attached(number); {`,
			new:    `for pause := newBackoff(); !l.sysfs.attached(number); {`,
			breaks: "a device in use counts as detached", tests: tests,
		},
		{
			name: "blockdev/number-not-freed", in: "loop.Loops.detach",
			old: `l.numbers.free(number)`, new: ``,
			breaks: "numbers run out after some attaches and detaches", tests: tests,
		},
		{
			name: "blockdev/not-resized", in: "loop.Loops.Resize",
			old:    `if err := unix.IoctlSetInt(int(file.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {`,
			new:    `if err := file.Sync(); err != nil {`,
			breaks: "an expanded volume keeps the size of its device", tests: tests,
		},
	}
}

package syscallfault_test

// found are injections that have found a defect. They run with each sample.
var found = []string{
	// A mount that failed once was INVALID_ARGUMENT: its flags were blamed without
	// being tried again.
	"ext4/stage/fsopen ext4-#1/EPERM",
	"btrfs/stage/fsmount -#1/EMFILE",
	"copies of cloned ext4/stage the copy/fsconfig+1 -#2/EBUSY",
	// A device that could not be asked after LOOP_CONFIGURE stayed attached, and its
	// image locked.
	"thick block/stage/ioctl+LOOP_GET_STATUS64 /dev/loopN#1/EPERM",
	"ext4/stage/ioctl+LOOP_GET_STATUS64 /dev/loopN#1/EIO",
	// A filesystem that was not thawed stayed frozen: the repeated call dropped the
	// record by which it would have been thawed.
	"copies of ext4/snapshot/ioctl+FITHAW kubelet/staging/turn-N#1/EPERM",
	"copies of xfs/clone/ioctl+FITHAW kubelet/staging/turn-N#1/EIO",
	// A path that could not be opened, or a device that could not be asked, was
	// NOT_FOUND, or taken for detached.
	"btrfs/expand on the node/openat2 kubelet/pods/turn-N#1/EMFILE",
	"thick block/stats/ioctl+0x80081280 /dev/loopN#1/EPERM", // BLKGETDISKSEQ
	"xfs/expand on the node/openat /sys/block/loopN/loop/backing_file#1/EIO",
	"inline/stats/openat kubelet#1/EIO",
	"thick/stats/openat2 kubelet/pods/turn-N#1/EPERM",
	"block/unstage/openat /sys/block/loopN/diskseq#1/EMFILE",
	"direct/unstage/openat /sys/block/loopN/diskseq#1/EMFILE",
}

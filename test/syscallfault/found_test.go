package syscallfault_test

// found are injections that have found a defect. They run with each sample.
var found = []string{
	// A mount that failed once was INVALID_ARGUMENT: its flags were blamed without
	// being tried again.
	"ext4/stage/fsopen ext4-#1/EPERM",
	"btrfs/stage/fsmount -#1/EMFILE",
	// A device that could not be asked after LOOP_CONFIGURE stayed attached, and its
	// image locked.
	"thick block/stage/ioctl+LOOP_GET_STATUS64 /dev/loopN#1/EPERM",
	"ext4/stage/ioctl+LOOP_GET_STATUS64 /dev/loopN#1/EIO",
	// A filesystem that was not thawed stayed frozen: the repeated call dropped the
	// record by which it would have been thawed.
	"copies of ext4/snapshot/ioctl+FITHAW kubelet/staging/turn-N#1/EPERM",
	"copies of xfs/clone/ioctl+FITHAW kubelet/staging/turn-N#1/EIO",
}

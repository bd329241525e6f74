package syscallfault_test

// found are injections that have found a defect. They run with each sample.
var found = []string{
	// A mount that failed once was INVALID_ARGUMENT: its flags were blamed without
	// being tried again.
	"ext4/stage/fsopen ext4-#1/EPERM",
	"btrfs/stage/fsmount -#1/EMFILE",
}

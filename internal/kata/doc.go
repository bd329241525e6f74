// Package kata gives a volume's block device to a runtime that runs pods
// in a virtual machine, in Kata's own words: the guest mounts the device, and the
// host doesn't.
//
//	<root>/<base64 of the target path>/mountInfo.json   an assignment: what Kata mounts in the guest
//	<root>/<base64 of the target path>/<sandbox id>     an empty file, by Kata: the guest that has it
//	<root>/.touchstone-…                                an assignment that is being written
//	<target path>/csiPlugin.json                        the same assignment, as older runtimes read it
//
// The root is shared with Kata and with other drivers, so its content is not trusted: it is reached
// by descriptor, no symlink is followed, and only what was requested is changed. A temporary file never lies beside an assignment:
// Kata takes whatever else is there for the id of a sandbox.
//
// A guest is asked through its shim's socket, or through the program kata-runtime.
// It belongs to a pod's user and is not trusted: it may hang, and return false or endless answers.
//
// It contains the files and messages that a runtime and a driver exchange about a volume; it does
// not know volumes, attaches and mounts no device, and decides no gRPC code.
package kata

// Package vm holds the tests that need more of a kernel than a build machine or
// container may allow: they run as root in a virtual machine with Debian's
// kernel, which hack/test-vm.sh (make test-vm) builds and starts, and skip
// everywhere else. What can be shown on the machine itself belongs beside the
// code or in another folder of test/, where it runs about twenty times faster.
package vm

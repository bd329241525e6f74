// Package doctor checks a machine, or a container on it, for what an installation requires,
// and describes how to fix what it finds.
//
// It changes nothing, takes no lock of the driver's, and needs no driver: it uses the same
// probes as the driver, and asks a running one only for what the driver alone knows. Trials,
// such as attaching an image, use unnamed files and an unused loop device, so that nothing
// is left even if the process is killed.
//
// Each check has a time limit, and a check that hangs is a finding. A process cannot exit
// while the kernel waits for a filesystem that does not respond, so the checks can run in a
// child process (ExamineInChild), which is abandoned in that case.
//
// It contains the checks, one function each, and their list. cmd/touchstone/internal/ctl prints the
// findings; docs/doctor.md describes each check.
package doctor

// Package doctor looks at what an installation needs on a machine, or in a
// container of it, and says of everything that is not well what to do about it.
//
// It changes nothing, holds no lock of the driver's, and needs no driver: it goes
// by the same probes as the driver, and asks one that runs for what only that
// knows. What it tries, as attaching an image, it tries with files that have no
// name and with a loop device that is nobody's, so that nothing is left of it, even
// when it is killed.
//
// Each check has its time, and one that hangs is a finding. A process cannot end
// while the kernel waits for a filesystem that is gone, so a whole examination can
// be left to a child (ExamineInChild), which is abandoned in that case.
//
// What may enter: checks, one function each, and the list of them. How a finding is
// shown is internal/cli/ctl's, and docs/doctor.md has a line for each check.
package doctor

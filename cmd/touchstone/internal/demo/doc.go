// Package demo implements `touchstone demo`, which shows the lifecycle of volumes on this
// machine. It starts the driver as a process, and runs commands as a person would type them:
// touchstone ctl makes the calls, and the shell's tools verify what they did.
//
// steps.go has the table of all commands with what each must print, run.go runs and prints them,
// driver.go has the driver's process, leftovers.go how leftovers are found and removed.
//
// It depends on cmd/touchstone/internal/doctor for the requirements on the machine, and on internal/linux/loop to
// list and detach loop devices. It depends on no service of the driver.
package demo

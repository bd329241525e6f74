// Command soak lets volumes come and go for an hour and looks all the time for
// conditions: as nothing is broken on purpose, each that appears is a false one,
// and the program ends with 1 and their list. In the end it also looks for what
// the driver has leaked.
//
// The driver is the built one, a process of its own. Pools, mounts and devices
// are real, in a mount namespace that ends with the program.
//
// It contains what a healthy driver must survive without reporting of
// trouble, and what it must not leave behind. Speed is test/bench's.
package main

// Command mutation checks the tests: it applies one deliberate defect after the
// other to the driver and runs the tests that should fail because of it.
//
// A mutant is one defect: a file, a text in it and the text that replaces it. The
// lists are in one file for each area (state.go, pool.go and so on). The working
// tree is not changed: the go command gets the mutated file through its -overlay
// flag, which GOFLAGS hands on to binaries that tests build.
//
// A mutant is caught when a test fails within two minutes with a message that
// says what is wrong. These do not count: a test that runs into its timeout, a
// panic of the test's process, and a bare assertion ("Should be true") without a
// message. A mutant whose text no longer occurs exactly once is stale, one that
// does not compile is broken: both are errors in the list.
package main

// Command mutation checks the tests: it applies one deliberate defect after the
// other to the driver and runs the tests that should fail because of it.
//
// A mutant is one defect: a text in a file and the text that replaces it. Without
// -regressions it draws a sample of those that the operators make of the syntax
// tree (operators.go), and runs all tests of the package and of the nearest ones
// in test (sample.go). With -regressions it tries the listed defects, each with
// the test that was written for it; the lists are in one file for each area
// (state.go, pool.go and so on).
//
// The working tree is not changed: the go command gets the mutated file through
// its -overlay flag, which GOFLAGS hands on to binaries that tests build.
//
// docs/testing.md has what counts as caught.
package main

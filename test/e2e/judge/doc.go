// Judge says what a run of the upstream external-storage suite is worth. The
// suite skips what a test-driver file does not claim, and says so in a line
// is not read; so each skip is compared with the claims of the file here, and
// one that no rule of rules.yaml expects is a failure as a failed spec is.
//
//	judge skip    prints the regular expression of the specs not to be run
//	judge report  judges a report of ginkgo's and prints the counts
//	judge total   counts the specs that have passed in one of several reports at least
//	judge compare compares a report spec by spec with one of upstream's own image
//
// It reads rules, claims and reports. What runs the suite is
// run.sh, one floor up.
package main

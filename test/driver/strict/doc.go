// Package strict tests the checks of the CO (--strict) through the socket: each violation is caused
// by a real client and found, and the calls that kubelet and sidecars legitimately send are not.
package strict

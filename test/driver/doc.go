// Package driver tests the whole driver from outside, through its gRPC
// socket, on real loop devices, filesystems and mounts.
package driver

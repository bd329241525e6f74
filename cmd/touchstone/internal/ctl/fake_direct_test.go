package ctl_test

import (
	"context"
	"testing"

	"github.com/touchstone-csi/touchstone/internal/kata"
)

// assigning is a fake with Touchstone's direct volume service.
type assigning struct {
	listed []kata.AssignedVolume
	err    error
}

func (a *assigning) list(context.Context) ([]kata.AssignedVolume, error) { return a.listed, a.err }

// startAssigning serves a driver with two volumes assigned: one that a sandbox
// has taken and whose filesystem has to grow, and a read-only one.
func startAssigning(t *testing.T) (*assigning, string) {
	t.Helper()

	driver := &assigning{listed: []kata.AssignedVolume{
		{
			VolumeID: "volume-1", TargetPath: "/kubelet/pods/a/mount", Device: "/dev/loop1024", FSType: "ext4",
			Options: []string{"noatime", "nodev"}, SizeBytes: 2 * gibi, PendingBytes: 2 * gibi, Sandbox: "0af3",
		},
		{
			VolumeID: "volume-2", TargetPath: "/kubelet/pods/b/mount", Device: "/dev/loop1025", FSType: "xfs",
			Options: []string{"ro"}, ReadOnly: true, SizeBytes: 300 * mebi,
		},
		{
			VolumeID: "volume-3", TargetPath: "/kubelet/pods/c/mount", Device: "/dev/loop1026", FSType: "btrfs", SizeBytes: gibi,
		},
	}}
	service := &kata.Service{List: driver.list}
	_, endpoint := startFake(t, service.Register)

	return driver, endpoint
}

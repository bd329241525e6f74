package node

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
)

// A direct volume is not mounted here but in a virtual machine, the guest. Its
// device is attached to stay, as that of raw block is; what is at the target path
// only says so to the machine's runtime. From its publication on the guest may
// write to the filesystem at any time, so that nothing here reads it, checks it,
// mounts it or grows it until nobody can have it any more.

// DirectConfig is how guests are told, and asked.
type DirectConfig struct {
	// Root is where Kata looks for what is assigned.
	Root *kata.Root
	// Guest is who asks the guests.
	Guest *kata.Guest
	// HostPaths are what the driver's paths are for Kata.
	HostPaths kata.HostPaths
}

const (
	// directPrefix is what the mount table shows as the source of what is at a
	// direct volume's target path, before the volume's id: by it the publication is
	// found without any record.
	directPrefix = "touchstone/"
	memory       = "tmpfs"
)

func directSource(volumeID string) string { return directPrefix + volumeID }

// isDirectMount reports whether the mount is the assignment of this direct volume.
func isDirectMount(u *staged.Volume, point mount.Point) bool {
	return point.FSType == memory && point.Source == directSource(u.VolumeID)
}

// DirectVolumes lists what is assigned on this node, in the order of target paths.
func (s *Service) DirectVolumes(context.Context) ([]kata.AssignedVolume, error) {
	listed := []kata.AssignedVolume{}

	for _, use := range s.stagedVolumes.All() {
		if !use.IsDirect() {
			continue
		}

		for _, publication := range use.Publications {
			each, err := s.listed(use, publication)
			if err != nil {
				return nil, rpc.Status(fmt.Errorf("list volume %s: %w", use.VolumeID, err))
			}

			listed = append(listed, each)
		}
	}

	slices.SortFunc(listed, func(a, b kata.AssignedVolume) int { return strings.Compare(a.TargetPath, b.TargetPath) })

	return listed, nil
}

func (s *Service) listed(use *staged.Volume, publication staged.Publication) (kata.AssignedVolume, error) {
	entry, _, err := s.config.Direct.Root.Get(publication.TargetPath)
	if err != nil {
		return kata.AssignedVolume{}, err
	}

	number, err := s.numberOf(use, publication)
	if err != nil {
		return kata.AssignedVolume{}, err
	}

	told := s.assignment(use, publication, number)
	each := kata.AssignedVolume{
		VolumeID: use.VolumeID, TargetPath: publication.TargetPath, FSType: told.FSType, Options: append([]string{}, told.Options...),
		ReadOnly: publication.ReadOnly || use.IsReadOnly(), Sandbox: entry.Sandbox,
	}

	if number == none {
		return each, nil
	}

	each.Device = told.Device

	vitals, _, err := s.loops.BasicStatus(number)
	each.SizeBytes = vitals.SizeBytes

	if each.SizeBytes > use.FilledBytes && !use.IsReadOnly() {
		each.PendingBytes = each.SizeBytes
	}

	return each, err
}

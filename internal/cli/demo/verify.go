package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

func (d *demo) verifyListed(ctx context.Context) (outcome, error) {
	nodes := make(map[string][]string)

	for entry, err := range d.Volumes(ctx, 2) {
		if err != nil {
			return outcome{}, err
		}

		nodes[entry.GetVolume().GetVolumeId()] = entry.GetStatus().GetPublishedNodeIds()
	}

	done := outcome{with: "max_entries=2", got: fmt.Sprintf("%d volumes, on %s", len(nodes), nodeID)}

	for _, v := range d.allVolumes() {
		if !slices.Equal(nodes[v.publication.VolumeID], []string{nodeID}) {
			return done, fmt.Errorf("%w: volume %s on nodes %v", errNotListed, v.publication.VolumeID, nodes[v.publication.VolumeID])
		}
	}

	return done, nil
}

func (d *demo) verifyNoMounts(context.Context) (outcome, error) {
	mounts, err := mountsBelow(d.paths.root)
	if err != nil {
		return outcome{}, err
	}

	var paths []string
	for _, mount := range mounts {
		paths = append(paths, mount.Mountpoint)
	}

	return expectNone("mount", paths)
}

func (d *demo) verifyNoLoops(context.Context) (outcome, error) {
	loops, err := loopsBelow(d.paths.root)
	if err != nil {
		return outcome{}, err
	}

	var names []string
	for _, device := range loops {
		names = append(names, device.String())
	}

	return expectNone("loop device", names)
}

// expectNone fails if anything was found.
func expectNone(what string, found []string) (outcome, error) {
	if len(found) > 0 {
		return outcome{}, fmt.Errorf("%w: %s", errLeftover, strings.Join(found, ", "))
	}

	return outcome{got: "no " + what}, nil
}

package ctl

import (
	"context"
	"strings"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
)

// directVolume is an assigned volume with its name, or id.
type directVolume struct {
	kata.AssignedVolume

	name string
}

var directColumns = columns[directVolume]{
	{header: "VOLUME", text: func(v directVolume) string { return v.name }},
	{header: "TARGET", text: func(v directVolume) string { return v.TargetPath }},
	{header: "DEVICE", text: func(v directVolume) string { return v.Device }},
	{header: "FS", text: func(v directVolume) string { return v.FSType }},
	{header: "SIZE", text: func(v directVolume) string { return formatBytes(v.SizeBytes) }},
	{header: "PENDING", text: func(v directVolume) string { return humanOrUnknown(v.PendingBytes) }},
	{header: "OPTIONS", text: func(v directVolume) string { return strings.Join(v.Options, ",") }},
	{header: "SANDBOX", text: func(v directVolume) string { return v.Sandbox }},
}

func directVolumesVerb() verb {
	return verb{
		name: listName, short: "List the node's direct volumes and the sandboxes that use them",
		long: `The volumes that are published on the node behind the socket for a virtual machine to
mount: where, by which device, and the sandbox that has taken each of them. PENDING is
the size that the device has already and the filesystem in the guest has not.`,
		run: func(ctx context.Context, s *session) error {
			list, err := kata.NewClient(s.Conn()).List(ctx)
			if err != nil {
				return err
			}

			if err := s.learn(ctx, names.Volume); err != nil {
				return err
			}

			volumes, ids := make([]directVolume, len(list)), make([]string, len(list))
			for i, each := range list {
				volumes[i], ids[i] = directVolume{each, s.names.of(each.VolumeID)}, each.VolumeID
			}

			return s.show(answers{"directVolumes": append([]kata.AssignedVolume{}, list...)}, directColumns.table(s.output, volumes...), ids...)
		},
	}
}

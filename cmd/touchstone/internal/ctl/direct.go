package ctl

import (
	"context"
	"errors"
	"strings"

	"github.com/touchstone-csi/touchstone/internal/kata"
)

var errNoDirect = errors.New("the driver lists no direct volumes: it is not Touchstone, or serves no node")

var directColumns = columns[kata.AssignedVolume]{
	{header: "VOLUME ID", text: func(v kata.AssignedVolume) string { return v.VolumeID }},
	{header: "TARGET", text: func(v kata.AssignedVolume) string { return v.TargetPath }},
	{header: "DEVICE", text: func(v kata.AssignedVolume) string { return v.Device }},
	{header: "FS", text: func(v kata.AssignedVolume) string { return v.FSType }},
	{header: "SIZE", text: func(v kata.AssignedVolume) string { return formatBytes(v.SizeBytes) }},
	{header: "PENDING", text: func(v kata.AssignedVolume) string { return humanOrUnknown(v.PendingBytes) }},
	{header: "OPTIONS", text: func(v kata.AssignedVolume) string { return strings.Join(v.Options, ",") }},
	{header: "SANDBOX", text: func(v kata.AssignedVolume) string { return v.Sandbox }},
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
				return explainNotTouchstone(err, kata.ServiceName, errNoDirect)
			}

			return s.show(answers{"directVolumes": append([]kata.AssignedVolume{}, list...)}, directColumns.table(s.output, list...))
		},
	}
}

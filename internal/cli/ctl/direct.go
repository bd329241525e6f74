package ctl

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/touchstone-csi/touchstone/internal/kata"
)

var errNoDirect = errors.New("the driver lists no direct volumes: it is not Touchstone, or serves no node")

func newDirectVolumesCommand(given *settings) *cobra.Command {
	return group("direct-volumes", "Volumes that virtual machines mount themselves", &cobra.Command{
		Use:   "list",
		Short: "List the node's direct volumes and the sandboxes that use them",
		Long: `The volumes that are published on the node behind the socket for a virtual machine to
mount: where, by which device, and the sandbox that has taken each of them. PENDING is
the size that the device has already and the filesystem in the guest has not.`,
		Args: exactly(0),
		RunE: given.inSession(func(ctx context.Context, s *session) error { return s.directVolumes(ctx) }),
	})
}

func (s *session) directVolumes(ctx context.Context) error {
	list, err := kata.NewClient(s.Conn()).List(ctx)
	if err != nil {
		return explainNotTouchstone(err, kata.ServiceName, errNoDirect)
	}

	return s.show(answers{"directVolumes": append([]kata.AssignedVolume{}, list...)}, directRows(list))
}

func directRows(list []kata.AssignedVolume) [][]string {
	rows := make([][]string, 0, 1+len(list))
	rows = append(rows, []string{"VOLUME ID", "TARGET", "DEVICE", "FS", "SIZE", "PENDING", "OPTIONS", "SANDBOX"})

	for _, each := range list {
		pending := dash
		if each.PendingBytes != 0 {
			pending = formatBytes(each.PendingBytes)
		}

		rows = append(rows, []string{
			each.VolumeID, each.TargetPath, orDash(each.Device), each.FSType, formatBytes(each.SizeBytes), pending,
			orDash(strings.Join(each.Options, ",")), orDash(each.Sandbox),
		})
	}

	return rows
}

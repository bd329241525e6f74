package ctl

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/pkg/controller/names"
)

var (
	errLeaks    = errors.New("the CO has left objects behind")
	errUnlisted = errors.New("what the CO has left behind is unknown: the driver does not advertise")
	errNoReport = errors.New("what the CO has left behind is unknown: the driver does not report the volumes in use; Touchstone does")
)

// leak is an object, or a use of one, that the CO has made and not removed.
type leak struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
	// At is the node of an attachment, and the path of a staging or publication.
	At string `json:"at,omitempty"`
	// Made is the call that made it, and Missing the one that removes it.
	Made    string `json:"made"`
	Missing string `json:"missing"`
}

var leakColumns = columns[leak]{
	{header: "KIND", text: func(l leak) string { return l.Kind }},
	{header: nameColumn, text: func(l leak) string { return l.Name }},
	{header: "ID", text: func(l leak) string { return l.ID }},
	{header: "AT", text: func(l leak) string { return l.At }},
	{header: "MADE BY", text: func(l leak) string { return l.Made }, wide: true},
	{header: "MISSING CALL", text: func(l leak) string { return l.Missing }},
}

func leaksVerb() verb {
	return verb{
		name: "leaks", short: "List what the CO has left behind (Touchstone only)",
		long: `List the volumes, snapshots and attachments that exist, and of a node that mounts
the stagings and publications, each with the call that is missing. Exit code 0:
there are none, 1: there are some, or it is unknown.`,
		run: func(ctx context.Context, s *session) error {
			found, err := s.leaks(ctx)
			if err != nil {
				return err
			}

			ids := make([]string, len(found))
			for i, each := range found {
				ids[i] = each.ID
			}

			if err := s.show(found, leakColumns.table(s.output, found...), ids...); err != nil || len(found) == 0 {
				return err
			}

			return fmt.Errorf("%w: %d", errLeaks, len(found))
		},
	}
}

// leaks returns what the CO has left behind, in the order in which it is removed.
func (s *session) leaks(ctx context.Context) ([]leak, error) {
	report, err := s.ownReport(ctx)
	if status.Code(err) == codes.Unimplemented {
		return nil, errNoReport
	}

	if err != nil {
		return nil, err
	}

	found := []leak{}

	for _, each := range report.Volumes {
		for _, target := range each.Published {
			found = append(found, leak{"publication", each.ID, each.Name, target, "NodePublishVolume", "NodeUnpublishVolume"})
		}

		if each.Staged != "" {
			found = append(found, leak{"staging", each.ID, each.Name, each.Staged, "NodeStageVolume", "NodeUnstageVolume"})
		}
	}

	stored, err := s.storedLeaks(ctx)

	return append(found, stored...), err
}

// storedLeaks are those of the controller. It has to list what it can create.
func (s *session) storedLeaks(ctx context.Context) (found []leak, err error) {
	caps, err := s.Capabilities(ctx)
	if err != nil || !caps.HasController {
		return nil, err
	}

	const snapshots = csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT

	for _, each := range []struct {
		makes, lists csi.ControllerServiceCapability_RPC_Type
	}{
		{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_LIST_VOLUMES},
		{csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME, csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES},
		{snapshots, csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS},
	} {
		if caps.HasControllerRPC(each.makes) && !caps.HasControllerRPC(each.lists) {
			return nil, fmt.Errorf("%w %s", errUnlisted, each.lists)
		}
	}

	if err := s.learn(ctx, names.Volume, names.Snapshot); err != nil {
		return nil, err
	}

	volumes, err := collect(s.Volumes(ctx, 0))
	if err != nil {
		return nil, err
	}

	for _, each := range volumes {
		id := each.GetVolume().GetVolumeId()
		for _, node := range each.GetStatus().GetPublishedNodeIds() {
			found = append(found, leak{"attachment", id, s.names[id], node, "ControllerPublishVolume", "ControllerUnpublishVolume"})
		}

		found = append(found, leak{Kind: string(names.Volume), ID: id, Name: s.names[id], Made: "CreateVolume", Missing: "DeleteVolume"})
	}

	if !caps.HasControllerRPC(snapshots) {
		return found, nil
	}

	taken, err := collect(s.Snapshots(ctx, "", 0))

	for _, each := range taken {
		id, group := each.GetSnapshot().GetSnapshotId(), each.GetSnapshot().GetGroupSnapshotId()
		if group == "" {
			found = append(found, leak{Kind: "snapshot", ID: id, Name: s.names[id], Made: "CreateSnapshot", Missing: "DeleteSnapshot"})
		} else {
			found = append(found, leak{
				Kind: "snapshot", ID: id, Name: s.names[id], At: "group " + group,
				Made: "CreateVolumeGroupSnapshot", Missing: "DeleteVolumeGroupSnapshot",
			})
		}
	}

	return found, err
}

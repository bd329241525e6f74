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
	// At is the node of an attachment, the path of a staging or publication, and the group of a member.
	At string `json:"at,omitempty"`
	// Made is the call that made it, and Missing the one that removes it.
	Made    string `json:"made"`
	Missing string `json:"missing"`
}

var leakColumns = columns[leak]{
	{header: "KIND", text: func(l leak) string { return l.Kind }},
	{header: nameColumn, text: func(l leak) string { return l.Name }},
	{header: "ID", text: func(l leak) string { return l.ID }, id: true},
	{header: "AT", text: func(l leak) string { return l.At }},
	{header: "MADE BY", text: func(l leak) string { return l.Made }, wide: true},
	{header: "MISSING CALL", text: func(l leak) string { return l.Missing }},
}

var leaksVerb = verb{
	name: "leaks", short: "List what the CO has left behind (Touchstone only)",
	long: `List the volumes, snapshots and attachments that exist, and of a node that mounts
the stagings and publications, each with the call that is missing. Exit code 0:
there are none, 1: there are some, or it is unknown.`,
	run: func(ctx context.Context, s *session) error {
		found, err := s.leaks(ctx)
		if err = leakColumns.show(s.printer, err, found, found...); err == nil && len(found) > 0 {
			err = fmt.Errorf("%w: %d", errLeaks, len(found))
		}

		return err
	},
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

// listings are the calls that list what others make.
var listings = []struct {
	makes, lists csi.ControllerServiceCapability_RPC_Type
}{
	{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_LIST_VOLUMES},
	{csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME, csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES},
	{csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS},
}

// storedLeaks are those of the controller. It has to list what it can create.
func (s *session) storedLeaks(ctx context.Context) (found []leak, err error) {
	caps, err := s.Capabilities(ctx)
	if err != nil || !caps.HasController {
		return nil, err
	}

	for _, each := range listings {
		if caps.HasControllerRPC(each.makes) && !caps.HasControllerRPC(each.lists) {
			return nil, fmt.Errorf("%w %s", errUnlisted, each.lists)
		}
	}

	if err := s.learn(ctx, names.Volume, names.Snapshot, names.Group); err != nil {
		return nil, err
	}

	for each, err := range s.Volumes(ctx, 0) {
		if err != nil {
			return nil, err
		}

		id := each.GetVolume().GetVolumeId()
		for _, node := range each.GetStatus().GetPublishedNodeIds() {
			found = append(found, leak{"attachment", id, s.names[id], node, "ControllerPublishVolume", "ControllerUnpublishVolume"})
		}

		found = append(found, leak{string(names.Volume), id, s.names[id], "", "CreateVolume", "DeleteVolume"})
	}

	if !caps.HasControllerRPC(csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT) {
		return found, nil
	}

	for each, err := range s.Snapshots(ctx, "", 0) {
		if err != nil {
			return nil, err
		}

		id, at, kind := each.GetSnapshot().GetSnapshotId(), "", "Snapshot"
		if group := each.GetSnapshot().GetGroupSnapshotId(); group != "" {
			at, kind = "group "+s.names.of(group), "VolumeGroupSnapshot"
		}

		found = append(found, leak{string(names.Snapshot), id, s.names[id], at, "Create" + kind, "Delete" + kind})
	}

	return found, nil
}

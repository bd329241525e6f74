package fuzz_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
)

// The names of the copies that stand: by these a call finds one that is there.
const (
	nameOlder = "standing-older"
	nameNewer = "standing-newer"
	nameFiles = "standing-files"
	nameGroup = "standing-group"
)

// standing are the requests that make the snapshots that are in no group.
func standing() map[string]*csi.CreateSnapshotRequest {
	return map[string]*csi.CreateSnapshotRequest{
		older: {Name: nameOlder, SourceVolumeId: formatted},
		newer: {Name: nameNewer, SourceVolumeId: formatted},
		// A directory that is in use can't be frozen.
		files: {Name: nameFiles, SourceVolumeId: directory, Parameters: anyMoment()},
	}
}

func standingGroup() *csi.CreateVolumeGroupSnapshotRequest {
	return &csi.CreateVolumeGroupSnapshotRequest{
		Name: nameGroup, SourceVolumeIds: []string{formatted, device}, Parameters: anyMoment(),
	}
}

func anyMoment() map[string]string { return map[string]string{"consistency": "none"} }

// copyExamples are valid requests that make, show and delete copies.
func copyExamples() map[string][]proto.Message {
	secrets := map[string]string{"token": "secret"}
	members := []string{memberOne, memberTwo}
	stands := standing()

	return map[string][]proto.Message{
		"/csi.v1.Controller/CreateVolume": copiedVolumes(),
		"/csi.v1.Controller/CreateSnapshot": {
			&csi.CreateSnapshotRequest{
				Name: "fuzz", SourceVolumeId: formatted, Secrets: secrets, Parameters: map[string]string{"consistency": "filesystem"},
			},
			&csi.CreateSnapshotRequest{Name: "idle", SourceVolumeId: idle},
			stands[older], stands[files],
		},
		"/csi.v1.Controller/DeleteSnapshot": {
			&csi.DeleteSnapshotRequest{SnapshotId: older, Secrets: secrets}, &csi.DeleteSnapshotRequest{SnapshotId: files},
		},
		"/csi.v1.Controller/ListSnapshots": {
			&csi.ListSnapshotsRequest{MaxEntries: 1, StartingToken: older, SourceVolumeId: formatted, Secrets: secrets},
			&csi.ListSnapshotsRequest{MaxEntries: 2, SnapshotId: newer},
		},
		"/csi.v1.Controller/GetSnapshot": {&csi.GetSnapshotRequest{SnapshotId: memberOne, Secrets: secrets}},
		"/csi.v1.GroupController/CreateVolumeGroupSnapshot": {
			&csi.CreateVolumeGroupSnapshotRequest{
				Name: "fuzz", SourceVolumeIds: []string{idle, formatted}, Secrets: secrets,
				Parameters: map[string]string{"consistency": "filesystem"},
			},
			standingGroup(),
		},
		"/csi.v1.GroupController/DeleteVolumeGroupSnapshot": {
			&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: group, SnapshotIds: members, Secrets: secrets},
		},
		"/csi.v1.GroupController/GetVolumeGroupSnapshot": {
			&csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: group, SnapshotIds: members, Secrets: secrets},
		},
		"/csi.v1.SnapshotMetadata/GetMetadataAllocated": {
			&csi.GetMetadataAllocatedRequest{SnapshotId: newer, StartingOffset: 4096, MaxResults: 4, Secrets: secrets},
			&csi.GetMetadataAllocatedRequest{SnapshotId: memberTwo},
		},
		"/csi.v1.SnapshotMetadata/GetMetadataDelta": {
			&csi.GetMetadataDeltaRequest{
				BaseSnapshotId: older, TargetSnapshotId: newer, StartingOffset: 4096, MaxResults: 4, Secrets: secrets,
			},
			&csi.GetMetadataDeltaRequest{BaseSnapshotId: older, TargetSnapshotId: newer},
		},
	}
}

func copiedVolumes() []proto.Message {
	ext4, block := csiclient.MountCapability(writer, "ext4"), csiclient.BlockCapability(writer)
	size := &csi.CapacityRange{RequiredBytes: 2 * volumeBytes, LimitBytes: 16 << 20}

	return []proto.Message{
		&csi.CreateVolumeRequest{
			Name: "restored", VolumeCapabilities: []*csi.VolumeCapability{ext4}, CapacityRange: size,
			Parameters: map[string]string{"provisioning": "thick"}, VolumeContentSource: ofSnapshot(older),
		},
		&csi.CreateVolumeRequest{
			Name: "restored-files", VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(writer, "")},
			Parameters: map[string]string{"backing": "directory"}, VolumeContentSource: ofSnapshot(files),
		},
		&csi.CreateVolumeRequest{
			Name: "restored-raw", VolumeCapabilities: []*csi.VolumeCapability{block}, VolumeContentSource: ofSnapshot(memberTwo),
		},
		&csi.CreateVolumeRequest{
			Name: "cloned", VolumeCapabilities: []*csi.VolumeCapability{ext4}, CapacityRange: size,
			VolumeContentSource: ofVolume(formatted),
		},
		&csi.CreateVolumeRequest{
			Name: "cloned-raw", VolumeCapabilities: []*csi.VolumeCapability{block}, VolumeContentSource: ofVolume(idle),
		},
	}
}

func ofSnapshot(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id},
	}}
}

func ofVolume(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id},
	}}
}

// restoreCopies makes the snapshots and the group that are missing.
func (w *world) restoreCopies(ctx context.Context) error {
	requests := standing()

	// What is made again is the newest.
	if w.ids[older] == "" {
		if err := w.deleteSnapshot(ctx, newer); err != nil {
			return err
		}
	}

	for _, token := range []string{older, newer, files} {
		if w.ids[token] != "" {
			continue
		}

		if err := w.write(token); err != nil {
			return err
		}

		request := requests[token]
		request.SourceVolumeId = w.ids[request.GetSourceVolumeId()]

		made, err := w.CreateSnapshotAndWait(ctx, request)
		if err != nil {
			return fmt.Errorf("restore snapshot %s: %w", request.GetName(), err)
		}

		w.ids[token] = made.GetSnapshot().GetSnapshotId()
	}

	return w.restoreGroup(ctx)
}

// write lets a snapshot of the formatted volume differ from the one before it.
func (w *world) write(token string) error {
	const data = 64 << 10

	return os.WriteFile(w.real(pod(formatted))+"/written", bytes.Repeat([]byte(token[len(token)-1:]), data), 0o600)
}

func (w *world) restoreGroup(ctx context.Context) error {
	if w.ids[group] != "" {
		return nil
	}

	request := standingGroup()
	for i, token := range request.GetSourceVolumeIds() {
		request.SourceVolumeIds[i] = w.ids[token]
	}

	made, err := w.CreateGroupSnapshotAndWait(ctx, request)
	if err != nil {
		return fmt.Errorf("restore the group: %w", err)
	}

	w.ids[group] = made.GetGroupSnapshot().GetGroupSnapshotId()

	for _, member := range made.GetGroupSnapshot().GetSnapshots() {
		token := memberOne
		if member.GetSourceVolumeId() == w.ids[device] {
			token = memberTwo
		}

		w.ids[token] = member.GetSnapshotId()
	}

	return nil
}

// undoCopies takes back what an accepted call has done to snapshots. What it has
// deleted is left to restoreCopies.
func (w *world) undoCopies(ctx context.Context, request, response proto.Message) error {
	switch r := request.(type) {
	case *csi.CreateSnapshotRequest:
		made, ok := response.(*csi.CreateSnapshotResponse)
		if id := made.GetSnapshot().GetSnapshotId(); ok && !w.stands(id) {
			_, err := w.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})

			return err
		}
	case *csi.CreateVolumeGroupSnapshotRequest:
		made, ok := response.(*csi.CreateVolumeGroupSnapshotResponse)
		if ok && !w.stands(made.GetGroupSnapshot().GetGroupSnapshotId()) {
			return w.deleteGroup(ctx, made.GetGroupSnapshot())
		}
	case *csi.DeleteSnapshotRequest:
		if token := w.token(r.GetSnapshotId()); token == older || token == newer || token == files {
			w.ids[token] = ""
		}
	case *csi.DeleteVolumeGroupSnapshotRequest:
		if r.GetGroupSnapshotId() == w.ids[group] {
			w.ids[group], w.ids[memberOne], w.ids[memberTwo] = "", "", ""
		}
	}

	return nil
}

func (w *world) deleteGroup(ctx context.Context, made *csi.VolumeGroupSnapshot) error {
	request := &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: made.GetGroupSnapshotId()}
	for _, member := range made.GetSnapshots() {
		request.SnapshotIds = append(request.GetSnapshotIds(), member.GetSnapshotId())
	}

	_, err := w.DeleteVolumeGroupSnapshot(ctx, request)

	return err
}

// deleteSnapshot deletes one of those that stand, if it is there.
func (w *world) deleteSnapshot(ctx context.Context, token string) error {
	if w.ids[token] == "" {
		return nil
	}

	_, err := w.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: w.ids[token]})
	w.ids[token] = ""

	return err
}

// clearCopies leaves no snapshot, and volumes only in ids.
func (w *world) clearCopies(ctx context.Context, tb testing.TB) {
	tb.Helper()

	for _, token := range []string{older, newer, files} {
		require.NoError(tb, w.deleteSnapshot(ctx, token))
	}

	if w.ids[group] != "" {
		_, err := w.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{
			GroupSnapshotId: w.ids[group], SnapshotIds: []string{w.ids[memberOne], w.ids[memberTwo]},
		})
		require.NoError(tb, err)
	}

	for _, token := range []string{older, newer, files, group, memberOne, memberTwo} {
		delete(w.ids, token)
	}
}

// deletesSnapshots says whether snapshots may be gone after the request.
func deletesSnapshots(request proto.Message) bool {
	switch request.(type) {
	case *csi.DeleteSnapshotRequest, *csi.DeleteVolumeGroupSnapshotRequest:
		return true
	default:
		return false
	}
}

// listed is what the driver says that there is, but not how it fares.
func (w *world) listed(ctx context.Context) ([]string, error) {
	var (
		list   []string
		failed error
	)

	for entry, err := range w.Volumes(ctx, 0) {
		volume := entry.GetVolume()
		list = append(list, fmt.Sprintf("volume %s of %d bytes at %q, made of %q",
			volume.GetVolumeId(), volume.GetCapacityBytes(), entry.GetStatus().GetPublishedNodeIds(), sourceOf(volume)))
		failed = errors.Join(failed, err)
	}

	for entry, err := range w.Snapshots(ctx, "", 0) {
		snapshot := entry.GetSnapshot()
		list = append(list, fmt.Sprintf("snapshot %s of %s with %d bytes at %s, ready %t, of group %q",
			snapshot.GetSnapshotId(), snapshot.GetSourceVolumeId(), snapshot.GetSizeBytes(), snapshot.GetCreationTime().AsTime(),
			snapshot.GetReadyToUse(), snapshot.GetGroupSnapshotId()))
		failed = errors.Join(failed, err)
	}

	// Groups are not listed. It may be gone, until the call is undone.
	if id := w.ids[group]; id != "" {
		_, err := w.GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{
			GroupSnapshotId: id, SnapshotIds: []string{w.ids[memberOne], w.ids[memberTwo]},
		})
		list = append(list, fmt.Sprintf("group %s: %s", id, status.Code(err)))
	}

	return list, failed
}

func sourceOf(volume *csi.Volume) []string {
	source := volume.GetContentSource()

	return []string{source.GetSnapshot().GetSnapshotId(), source.GetVolume().GetVolumeId()}
}

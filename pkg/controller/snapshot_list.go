package controller

import (
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// ListSnapshots lists snapshots in the order of their ids, which is that of
// their creation (CSI v1.13, ListSnapshots). The token is the last id that was
// returned; it stays valid when that snapshot is deleted. An unknown id is no
// error here.
func (s *Service) ListSnapshots(_ context.Context, request *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	listed, err := newPage[*csi.ListSnapshotsResponse_Entry]("ListSnapshots", request)
	if err != nil {
		return nil, err
	}

	token, sourceID := request.GetStartingToken(), request.GetSourceVolumeId()

	snapshots := s.catalog.VisibleSnapshots(sourceID, token)
	if id := request.GetSnapshotId(); id != "" {
		var one []*record.Snapshot
		if found, err := s.catalog.FindSnapshot(id); err == nil && id > token && (sourceID == "" || found.SourceVolumeID == sourceID) {
			one = append(one, found)
		}

		snapshots = slices.Values(one)
	}

	for found := range snapshots {
		if !listed.add(found.ID, &csi.ListSnapshotsResponse_Entry{Snapshot: s.describeSnapshot(found)}) {
			break
		}
	}

	return &csi.ListSnapshotsResponse{Entries: listed.entries, NextToken: listed.nextToken}, nil
}

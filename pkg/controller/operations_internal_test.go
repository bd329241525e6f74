package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
)

// operations are calls that change something: each prepares what it needs and returns the call, which
// may be repeated.
func operations() map[string]func(s *site) func(ctx context.Context) error {
	creating := func(prepare func(s *site) []func(*csi.CreateVolumeRequest)) func(s *site) func(context.Context) error {
		return func(s *site) func(context.Context) error {
			request := createRequestOf("made", prepare(s)...)

			return func(ctx context.Context) error {
				_, err := s.CreateVolume(ctx, request)

				return err
			}
		}
	}
	plainly := func(change ...func(*csi.CreateVolumeRequest)) func(s *site) func(context.Context) error {
		return creating(func(*site) []func(*csi.CreateVolumeRequest) { return change })
	}

	return map[string]func(s *site) func(context.Context) error{
		"create an image":       plainly(),
		"create a thick image":  plainly(with("provisioning", "thick")),
		"create a directory":    plainly(with("backing", "directory")),
		"create with limits":    plainly(withMutable),
		"create in the other":   plainly(with("pool", "fast")),
		"restore":               creating(restoring()),
		"restore with limits":   creating(restoring(withMutable)),
		"restore a directory":   creating(restoring(with("backing", "directory"))),
		"clone":                 creating(cloning()),
		"clone a thick image":   creating(cloning(with("provisioning", "thick"))),
		"publish":               publishing,
		"publish a directory":   publishingDirectory,
		"unpublish":             unpublishing,
		"delete":                deleting(),
		"delete a directory":    deleting(with("backing", "directory")),
		"expand":                expanding(),
		"expand a directory":    expanding(with("backing", "directory")),
		"expand after use":      expandingUsed(),
		"expand it after use":   expandingUsed(with("backing", "directory")),
		"modify":                modifying,
		"snapshot":              snapshotting(),
		"snapshot a directory":  snapshotting(with("backing", "directory")),
		"delete a snapshot":     deletingSnapshot,
		"group snapshot":        grouping,
		"delete group snapshot": deletingGroup,
	}
}

func restoring(change ...func(*csi.CreateVolumeRequest)) func(s *site) []func(*csi.CreateVolumeRequest) {
	return func(s *site) []func(*csi.CreateVolumeRequest) {
		backing := func(r *csi.CreateVolumeRequest) {
			for _, each := range change {
				each(r)
			}

			r.MutableParameters = nil
		}

		return append(change, ofSnapshot(s.snapshot("snapshot", s.create("source", backing))))
	}
}

func cloning(change ...func(*csi.CreateVolumeRequest)) func(s *site) []func(*csi.CreateVolumeRequest) {
	return func(s *site) []func(*csi.CreateVolumeRequest) {
		return append(change, ofVolume(s.create("source", change...)))
	}
}

func publishing(s *site) func(context.Context) error {
	id := s.create("used")

	return func(ctx context.Context) error { return s.publish(ctx, id, ownNode) }
}

func publishingDirectory(s *site) func(context.Context) error {
	id := s.create("used", with("backing", "directory"))

	return func(ctx context.Context) error { return s.publish(ctx, id, ownNode) }
}

func unpublishing(s *site) func(context.Context) error {
	id := s.create("used")
	require.NoError(s.t, s.publish(s.t.Context(), id, ownNode))

	return func(ctx context.Context) error { return s.unpublish(ctx, id, ownNode) }
}

func deleting(change ...func(*csi.CreateVolumeRequest)) func(s *site) func(context.Context) error {
	return func(s *site) func(context.Context) error {
		id := s.create("gone", change...)

		return func(ctx context.Context) error { return s.remove(ctx, id) }
	}
}

func expanding(change ...func(*csi.CreateVolumeRequest)) func(s *site) func(context.Context) error {
	return func(s *site) func(context.Context) error {
		id := s.create("grown", change...)

		return func(ctx context.Context) error { return s.expand(ctx, id, 8*mib) }
	}
}

func expandingUsed(change ...func(*csi.CreateVolumeRequest)) func(s *site) func(context.Context) error {
	return func(s *site) func(context.Context) error {
		id := s.create("grown", change...)
		require.NoError(s.t, s.publish(s.t.Context(), id, ownNode))

		return func(ctx context.Context) error { return s.expand(ctx, id, 8*mib) }
	}
}

func modifying(s *site) func(context.Context) error {
	id := s.create("limited")

	return func(ctx context.Context) error { return s.modify(ctx, id, "readIOPS", "100") }
}

func snapshotting(change ...func(*csi.CreateVolumeRequest)) func(s *site) func(context.Context) error {
	return func(s *site) func(context.Context) error {
		id := s.create("source", change...)

		return func(ctx context.Context) error {
			_, err := s.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: id})

			return err
		}
	}
}

func deletingSnapshot(s *site) func(context.Context) error {
	id := s.snapshot("snapshot", s.create("source"))

	return func(ctx context.Context) error {
		_, err := s.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})

		return err
	}
}

func grouping(s *site) func(context.Context) error {
	ids := []string{s.create("source"), s.create("source in the other", with("pool", "fast"))}

	return func(ctx context.Context) error {
		_, err := s.groups.CreateVolumeGroupSnapshot(ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: "group", SourceVolumeIds: ids})

		return err
	}
}

func deletingGroup(s *site) func(context.Context) error {
	made := s.group("group", s.create("source"), s.create("source 2"))

	request := &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: made.GetGroupSnapshotId()}
	for _, each := range made.GetSnapshots() {
		request.SnapshotIds = append(request.SnapshotIds, each.GetSnapshotId())
	}

	return func(ctx context.Context) error {
		_, err := s.groups.DeleteVolumeGroupSnapshot(ctx, request)

		return err
	}
}

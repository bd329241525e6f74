package record

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

const (
	id1 = "01a214de-7380-7dcf-aa2f-7347d29a6ca1"
	id2 = "01a214de-7380-7dcf-aa2f-7347d29a6ca2"
	id3 = "01a214de-7380-7dcf-aa2f-7347d29a6ca3"
)

func validVolume() *Volume {
	return &Volume{
		ID: id1, Name: "volume", CapacityBytes: 1, Phase: PhaseReady, Source: Source{SnapshotID: id2}, SizeLimit: volume.SizeByQuota,
		Properties: &Properties{Parameters: validParameters(), Capabilities: []volume.Capability{{Mode: "SINGLE_NODE_WRITER"}}},
		Attachments: []Attachment{
			{NodeID: "a", Capability: volume.Capability{Mode: "MULTI_NODE_MULTI_WRITER"}},
			{NodeID: "b", Slot: 1, Capability: volume.Capability{Mode: "MULTI_NODE_MULTI_WRITER"}},
		},
	}
}

func validParameters() volume.Parameters {
	return volume.Parameters{
		Pool: "default", Backing: volume.BackingImage, FSType: "ext4", Provisioning: volume.Thin, BlockSize: volume.DefaultBlockSize,
	}
}

func validSnapshot() *Snapshot {
	return &Snapshot{
		ID: id1, Name: "snapshot", SourceVolumeID: id2, SizeBytes: 1, AllocatedBytes: 1, Parameters: validParameters(),
		Consistency: volume.ConsistencyFilesystem, Phase: PhaseReady,
	}
}

func validGroup() *Group {
	return &Group{
		ID: id1, Name: "group", SourceVolumeIDs: []string{id2, id3}, SnapshotIDs: []string{id2, id3},
		Consistency: volume.ConsistencyNone, Phase: PhaseReady,
	}
}

// TestInvalidVolumesAreRefused: a record that the driver does not write is damage.
func TestInvalidVolumesAreRefused(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		valid  bool
		change func(v *Volume)
	}{
		"as it is":                 {true, func(*Volume) {}},
		"creating":                 {true, func(v *Volume) { v.Phase = PhaseCreating }},
		"deleting":                 {true, func(v *Volume) { v.Phase = PhaseDeleting }},
		"empty":                    {true, func(v *Volume) { v.CapacityBytes = 0 }},
		"without a source":         {true, func(v *Volume) { v.Source = Source{} }},
		"of a volume":              {true, func(v *Volume) { v.Source = Source{VolumeID: id3} }},
		"detached":                 {true, func(v *Volume) { v.Attachments = nil }},
		"without properties":       {false, func(v *Volume) { v.Properties = nil }},
		"without a name":           {false, func(v *Volume) { v.Name = "" }},
		"without a phase":          {false, func(v *Volume) { v.Phase = "" }},
		"in a snapshot's phase":    {false, func(v *Volume) { v.Phase = PhaseCopying }},
		"negative":                 {false, func(v *Volume) { v.CapacityBytes = -1 }},
		"without capabilities":     {false, func(v *Volume) { v.Capabilities = nil }},
		"with an unknown mode":     {false, func(v *Volume) { v.Capabilities = append(v.Capabilities, volume.Capability{Mode: "x"}) }},
		"without an id":            {false, func(v *Volume) { v.ID = "" }},
		"with another id":          {false, func(v *Volume) { v.ID = id2 }},
		"without a pool":           {false, func(v *Volume) { v.Parameters.Pool = "" }},
		"with another size limit":  {false, func(v *Volume) { v.SizeLimit = "x" }},
		"of a source without form": {false, func(v *Volume) { v.Source = Source{VolumeID: "x"} }},
		"of two sources":           {false, func(v *Volume) { v.Source.VolumeID = id3 }},
		"attached nowhere":         {false, func(v *Volume) { v.Attachments[1].NodeID = "" }},
		"in a negative slot":       {false, func(v *Volume) { v.Attachments[1].Slot = -1 }},
		"attached twice":           {false, func(v *Volume) { v.Attachments[1].NodeID = "a" }},
		"attached without a mode":  {false, func(v *Volume) { v.Attachments[1].Capability.Mode = "" }},
	} {
		v := validVolume()
		test.change(v)
		requireValid(t, test.valid, checkVolume(id1, v), name)
	}
}

func requireValid(t *testing.T, valid bool, err error, name string) {
	t.Helper()

	if valid {
		require.NoError(t, err, name)
	} else {
		require.Error(t, err, "want: a record %s is refused", name)
	}
}

func TestInvalidSnapshotsAreRefused(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		valid  bool
		change func(s *Snapshot)
	}{
		"as it is":                 {true, func(*Snapshot) {}},
		"copying":                  {true, func(s *Snapshot) { s.Phase = PhaseCopying }},
		"failed":                   {true, func(s *Snapshot) { s.Phase = PhaseFailed }},
		"deleting":                 {true, func(s *Snapshot) { s.Phase = PhaseDeleting }},
		"a member":                 {true, func(s *Snapshot) { s.Name, s.GroupID = "", id3 }},
		"empty":                    {true, func(s *Snapshot) { s.SizeBytes, s.AllocatedBytes = 0, 0 }},
		"without a phase":          {false, func(s *Snapshot) { s.Phase = "" }},
		"without a name":           {false, func(s *Snapshot) { s.Name = "" }},
		"of a group without form":  {false, func(s *Snapshot) { s.GroupID = "x" }},
		"without a source":         {false, func(s *Snapshot) { s.SourceVolumeID = "" }},
		"of a negative size":       {false, func(s *Snapshot) { s.SizeBytes = -1 }},
		"of negative allocation":   {false, func(s *Snapshot) { s.AllocatedBytes = -1 }},
		"with another id":          {false, func(s *Snapshot) { s.ID = id2 }},
		"without a pool":           {false, func(s *Snapshot) { s.Parameters.Pool = "" }},
		"with another consistency": {false, func(s *Snapshot) { s.Consistency = "x" }},
	} {
		s := validSnapshot()
		test.change(s)
		requireValid(t, test.valid, checkSnapshot(id1, s), name)
	}
}

func TestInvalidGroupsAreRefused(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		valid  bool
		change func(g *Group)
	}{
		"as it is":                 {true, func(*Group) {}},
		"creating":                 {true, func(g *Group) { g.Phase = PhaseCreating }},
		"without a name":           {false, func(g *Group) { g.Name = "" }},
		"without a phase":          {false, func(g *Group) { g.Phase = "" }},
		"copying":                  {false, func(g *Group) { g.Phase = PhaseCopying }},
		"without members":          {false, func(g *Group) { g.SnapshotIDs, g.SourceVolumeIDs = nil, nil }},
		"with a member less":       {false, func(g *Group) { g.SnapshotIDs = g.SnapshotIDs[:1] }},
		"with a member twice":      {false, func(g *Group) { g.SnapshotIDs[1] = id2 }},
		"with a source twice":      {false, func(g *Group) { g.SourceVolumeIDs[1] = id2 }},
		"of a member without form": {false, func(g *Group) { g.SnapshotIDs[0] = "x" }},
		"with another id":          {false, func(g *Group) { g.ID = id2 }},
		"with another consistency": {false, func(g *Group) { g.Consistency = "" }},
	} {
		g := validGroup()
		test.change(g)
		requireValid(t, test.valid, checkGroup(id1, g), name)
	}
}

// TestContradictoryMembersAreReported, and no others.
func TestContradictoryMembersAreReported(t *testing.T) {
	t.Parallel()

	group := func(phase Phase) *Group {
		return &Group{
			ID: id1, Name: "group", SourceVolumeIDs: []string{id2}, SnapshotIDs: []string{id2}, Phase: phase,
			Consistency: volume.ConsistencyNone,
		}
	}
	member := func(id, groupID string, phase Phase) *Snapshot {
		s := validSnapshot()
		s.ID, s.Name, s.GroupID, s.Phase = id, "member "+id, groupID, phase

		return s
	}

	for name, test := range map[string]struct {
		group   *Group
		members []*Snapshot
		want    []string
	}{
		"ready":                             {group(PhaseReady), []*Snapshot{member(id2, id1, PhaseReady)}, nil},
		"the member is deleted":             {group(PhaseReady), []*Snapshot{member(id2, id1, PhaseDeleting)}, nil},
		"the member is gone":                {group(PhaseReady), nil, nil},
		"both are being created":            {group(PhaseCreating), []*Snapshot{member(id2, id1, PhaseCreating)}, nil},
		"the group is gone":                 {nil, []*Snapshot{member(id2, id1, PhaseReady)}, nil},
		"no member of a group":              {group(PhaseReady), []*Snapshot{member(id2, id1, PhaseReady), member(id3, "", PhaseReady)}, nil},
		"the member is of another group":    {group(PhaseReady), []*Snapshot{member(id2, id3, PhaseReady)}, []string{"groups " + id1}},
		"the group is not ready":            {group(PhaseCreating), []*Snapshot{member(id2, id1, PhaseReady)}, []string{"groups " + id1}},
		"the member is not ready":           {group(PhaseReady), []*Snapshot{member(id2, id1, PhaseCreating)}, []string{"groups " + id1}},
		"one more member":                   {group(PhaseReady), []*Snapshot{member(id3, id1, PhaseReady)}, []string{"snapshots " + id3}},
		"the group is deleted, no member":   {group(PhaseDeleting), []*Snapshot{member(id2, id1, PhaseReady)}, []string{"groups " + id1}},
		"the group is deleted with members": {group(PhaseDeleting), []*Snapshot{member(id2, id1, PhaseDeleting)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			store := state.New(t.TempDir(), state.Options{Log: slog.New(slog.DiscardHandler)})
			c := Register(store, Options{})
			require.NoError(t, store.Open(t.Context()))
			t.Cleanup(func() { require.NoError(t, store.Close()) })

			var reported []string

			require.NoError(t, store.Update(t.Context(), func(tx *state.Tx) error {
				if test.group != nil {
					require.NoError(t, c.Groups.In(tx).Put(id1, test.group))
				}

				for _, each := range test.members {
					require.NoError(t, c.Snapshots.In(tx).Put(each.ID, each))
				}

				c.checkMembers(tx, func(collection, key string, _ error) { reported = append(reported, collection+" "+key) })

				return nil
			}))
			require.Equal(t, test.want, reported)
		})
	}
}

// TestVolumeDescribesItself: what the record says of the volume to a CO and to the node.
func TestVolumeDescribesItself(t *testing.T) {
	t.Parallel()

	v := validVolume()
	require.Equal(t, map[string]string{
		"pool": "default", "backing": "image", volume.KeyFSType: "ext4", "provisioning": "thin", "blockSize": "4096",
		volume.KeyCopy: "true", volume.KeySizeLimit: string(volume.SizeByQuota),
	}, v.Context())
	require.True(t, v.HasContext(v.Context()), "want: it has its context")
	require.Equal(t, []string{"a", "b"}, v.NodeIDs())
	require.False(t, v.IsRaw(), "want: it can be mounted")
	require.False(t, v.IsThick(), "want: it is thin")
	require.Equal(t, "volume", v.Phase.indexed(v.Name))

	at, ok := v.AttachmentTo("b")
	require.True(t, ok, "want: it is attached to b")
	require.Equal(t, 1, at.Slot, "want: the slot of that attachment")

	_, ok = v.AttachmentTo("c")
	require.False(t, ok, "want: it is not attached to c")

	for key, value := range map[string]string{volume.KeyFSType: "xfs", volume.KeyCopy: "false", "blockSize": "x"} {
		context := v.Context()
		context[key] = value
		require.False(t, v.HasContext(context), "want: %s=%s is another context", key, value)
	}

	raw := validVolume()
	raw.Capabilities, raw.Source, raw.SizeLimit, raw.Attachments, raw.Phase = []volume.Capability{{Block: true}}, Source{}, "", nil, PhaseDeleting
	raw.Parameters.Provisioning = volume.Thick
	require.Equal(t, map[string]string{"pool": "default", "backing": "image", "provisioning": "thick", "blockSize": "4096"}, raw.Context())
	require.True(t, raw.HasContext(raw.Context()), "want: it has its context")
	require.Nil(t, raw.NodeIDs(), "want: it is attached nowhere")
	require.True(t, raw.IsRaw(), "want: it is for block access alone")
	require.True(t, raw.IsThick(), "want: it is thick")
	require.Empty(t, raw.Phase.indexed(raw.Name), "want: the name of a volume that is deleted is free")

	named := raw.Context()
	named[volume.KeyFSType] = "xfs"
	require.False(t, raw.HasContext(named), "want: it was made for another filesystem")

	raw.Capabilities = append(raw.Capabilities, volume.Capability{Mode: "SINGLE_NODE_WRITER"})
	require.False(t, raw.IsRaw(), "want: it can be mounted, too")
	require.Empty(t, raw.CapabilityDifferences(volume.Capability{Mode: "SINGLE_NODE_WRITER", FSType: "ext4"}), "want: the second capability is the same")
	require.Contains(t, raw.CapabilityDifferences(volume.Capability{Mode: "SINGLE_NODE_WRITER", FSType: "xfs"}), "access type",
		"want: the differences from the first capability")

	for direct, want := range map[[2]bool]bool{{false, false}: false, {true, false}: true, {false, true}: true, {true, true}: true} {
		v.DirectByClaim = direct[0]
		require.Equal(t, want, v.ApplyClaim(volume.Parameters{DirectAssign: direct[1]}).DirectAssign, "%v", direct)
	}

	changed := v.Clone()
	changed.Attachments[0].NodeID = "c"
	require.Equal(t, "a", v.Attachments[0].NodeID)
}

// TestTheNameOfWhatIsDeletedIsFree, and a member of a group has none.
func TestTheNameOfWhatIsDeletedIsFree(t *testing.T) {
	t.Parallel()

	for _, phase := range []Phase{PhaseCreating, PhaseReady, PhaseCopying, PhaseFailed, PhaseDeleting} {
		s, g := validSnapshot().InPhase(phase), validGroup().InPhase(phase)
		require.Equal(t, phase != PhaseDeleting, s.Phase.indexed(s.Name) == "snapshot", "want: phase %s", phase)
		require.Equal(t, phase != PhaseDeleting, g.Phase.indexed(g.Name) == "group", "want: phase %s", phase)
		require.Equal(t, phase == PhaseCreating || phase == PhaseDeleting, phase.IsUnfinished(), "want: phase %s", phase)
		require.Equal(t, !phase.IsUnfinished(), s.IsVisible(), "want: phase %s", phase)
	}

	require.Nil(t, (*Group)(nil).InPhase(PhaseReady), "want: no group stays none")
	require.Equal(t, "nothing", Source{}.String())
	require.Equal(t, id1, Source{SnapshotID: id1}.String())
	require.Equal(t, id2, Source{VolumeID: id2}.String())
	require.Nil(t, Source{}.ContentSource(), "want: no source is none")
	require.Equal(t, id1, Source{SnapshotID: id1}.ContentSource().GetSnapshot().GetSnapshotId())
	require.Equal(t, id2, Source{VolumeID: id2}.ContentSource().GetVolume().GetVolumeId())
}

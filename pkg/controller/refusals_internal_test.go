package controller

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/logs"
	"github.com/touchstone-csi/touchstone/test/poolset"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// TestRefusedCreations: what is wrong with a request is refused before anything is made or recorded.
func TestRefusedCreations(t *testing.T) {
	t.Parallel()

	type request = csi.CreateVolumeRequest

	s := newSite(t, inZone, func(c *Config) { c.MaxVolumeBytes = 64 * mib })
	source := s.create("source")
	snapshotID := s.snapshot("snapshot", source)
	records := s.allRecords()
	zones := func(of ...string) func(r *request) {
		return func(r *request) {
			r.AccessibilityRequirements = &csi.TopologyRequirement{}
			for _, each := range of {
				r.AccessibilityRequirements.Requisite = append(r.AccessibilityRequirements.GetRequisite(),
					&csi.Topology{Segments: map[string]string{zoneKey: each}})
			}
		}
	}
	capabilities := func(of ...*csi.VolumeCapability) func(r *request) {
		return func(r *request) { r.VolumeCapabilities = of }
	}

	for name, test := range map[string]struct {
		change func(r *request)
		want   codes.Code
	}{
		"no name":                  {func(r *request) { r.Name = "" }, codes.InvalidArgument},
		"a control character":      {func(r *request) { r.Name = "a\x00" }, codes.InvalidArgument},
		"no capability":            {capabilities(), codes.InvalidArgument},
		"an incomplete one":        {capabilities(&csi.VolumeCapability{}), codes.InvalidArgument},
		"two filesystems":          {capabilities(capabilityWith(1, "xfs"), capabilityWith(1, "ext4")), codes.InvalidArgument},
		"an unknown parameter":     {with("colour", "red"), codes.InvalidArgument},
		"an unknown pool":          {with("pool", "x"), codes.InvalidArgument},
		"options that mkfs lacks":  {with(volume.KeyMkfsOptions, "--no-such-option"), codes.InvalidArgument},
		"a context that is longer": {with(volume.KeyMkfsOptions, "-m "+strings.Repeat("1", maxMapBytes)), codes.InvalidArgument},
		"an empty topology":        {zones(), codes.InvalidArgument},
		"another zone":             {zones("b"), codes.ResourceExhausted},
		"an unknown limit":         {func(r *request) { r.MutableParameters = map[string]string{"colour": "red"} }, codes.InvalidArgument},
		"a limit of a directory": {func(r *request) {
			withMutable(r)
			r.Parameters["backing"] = "directory"
		}, codes.InvalidArgument},
		"a negative size":     {func(r *request) { r.CapacityRange.RequiredBytes = -1 }, codes.InvalidArgument},
		"more than a maximum": {func(r *request) { r.CapacityRange.RequiredBytes = 65 * mib }, codes.OutOfRange},
		"an unknown volume":   {ofVolume(newID(t)), codes.NotFound},
		"an unknown snapshot": {ofSnapshot(newID(t)), codes.NotFound},
		"no volume":           {ofVolume(""), codes.InvalidArgument},
		"no snapshot":         {ofSnapshot(""), codes.InvalidArgument},
		"no source":           {func(r *request) { r.VolumeContentSource = &csi.VolumeContentSource{} }, codes.InvalidArgument},
		"a smaller copy": {func(r *request) {
			ofVolume(source)(r)
			r.CapacityRange = &csi.CapacityRange{RequiredBytes: mib, LimitBytes: mib}
		}, codes.OutOfRange},
		"a smaller restore": {func(r *request) {
			ofSnapshot(snapshotID)(r)
			r.CapacityRange = &csi.CapacityRange{RequiredBytes: mib, LimitBytes: mib}
		}, codes.OutOfRange},
		"another filesystem than that of the source": {func(r *request) {
			ofVolume(source)(r)
			r.VolumeCapabilities = []*csi.VolumeCapability{capabilityWith(1, "btrfs")}
			r.CapacityRange.RequiredBytes = 0
		}, codes.InvalidArgument},
		"the name of another": {func(r *request) { r.Name = "source"; r.CapacityRange.RequiredBytes = 8 * mib }, codes.AlreadyExists},
	} {
		_, err := s.CreateVolume(t.Context(), createRequestOf("made", test.change))
		rpccode.Require(t, err, test.want, "%s", name)
		require.Equal(t, records, s.allRecords(), "want: nothing is recorded of %s", name)
	}

	s.requireSound()

	// Of the filesystems that a volume may have, a raw one has none to be made.
	_, err := s.CreateVolume(t.Context(), createRequestOf("raw", capabilities(blockCapability()), zones("b", "a")))
	require.NoError(t, err)

	s.restart(without("CREATE_DELETE_SNAPSHOT"))

	_, err = s.CreateVolume(t.Context(), createRequestOf("made", ofSnapshot(snapshotID)))
	rpccode.Require(t, err, codes.InvalidArgument)

	s.restart(without("CLONE_VOLUME"))

	_, err = s.CreateVolume(t.Context(), createRequestOf("made", ofVolume(source)))
	rpccode.Require(t, err, codes.InvalidArgument)
}

// TestRefusedSnapshots: what is wrong with a request is refused before anything is made or recorded.
func TestRefusedSnapshots(t *testing.T) {
	t.Parallel()

	type request = csi.CreateSnapshotRequest

	s := newSite(t)
	source := s.create("source")
	records := s.allRecords()

	for name, test := range map[string]struct {
		change func(r *request)
		want   codes.Code
	}{
		"no name":              {func(r *request) { r.Name = "" }, codes.InvalidArgument},
		"no source":            {func(r *request) { r.SourceVolumeId = "" }, codes.InvalidArgument},
		"an unknown source":    {func(r *request) { r.SourceVolumeId = newID(t) }, codes.NotFound},
		"an unknown parameter": {func(r *request) { r.Parameters = map[string]string{"colour": "red"} }, codes.InvalidArgument},
		"a topology":           {func(r *request) { r.AccessibilityRequirements = zone("a") }, codes.InvalidArgument},
	} {
		given := &request{Name: "snapshot", SourceVolumeId: source}
		test.change(given)

		_, err := s.CreateSnapshot(t.Context(), given)
		rpccode.Require(t, err, test.want, "%s", name)
		require.Equal(t, records, s.allRecords(), "want: nothing is recorded of %s", name)
	}

	for id, want := range map[string]codes.Code{"": codes.InvalidArgument, newID(t): codes.NotFound} {
		_, err := s.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: id})
		rpccode.Require(t, err, want)
	}

	_, err := s.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{})
	rpccode.Require(t, err, codes.InvalidArgument)

	_, err = s.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{})
	rpccode.Require(t, err, codes.InvalidArgument)
	s.requireSound()
}

// TestInvalidRequestsAreRefusedForUnknownVolumes: what is wrong in any state is refused before the volume is
// looked up.
func TestInvalidRequestsAreRefusedForUnknownVolumes(t *testing.T) {
	t.Parallel()

	s := newSite(t, without("PUBLISH_READONLY", "SINGLE_NODE_MULTI_WRITER"))
	ctx, id := t.Context(), newID(t)
	mib := &csi.CapacityRange{RequiredBytes: mib}
	good, incomplete := capabilityWith(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, ""), &csi.VolumeCapability{}
	unadvertised := capabilityWith(csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, "")
	attach := func(wanted *csi.VolumeCapability, readonly bool) error {
		_, err := s.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
			VolumeId: id, NodeId: "unknown", VolumeCapability: wanted, Readonly: readonly,
		})

		return err
	}
	expand := func(to *csi.CapacityRange, wanted *csi.VolumeCapability) error {
		_, err := s.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: to, VolumeCapability: wanted})

		return err
	}
	modify := func(mutable map[string]string) error {
		_, err := s.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{VolumeId: id, MutableParameters: mutable})

		return err
	}
	validate := func(wanted ...*csi.VolumeCapability) error {
		_, err := s.ValidateVolumeCapabilities(ctx, &csi.ValidateVolumeCapabilitiesRequest{VolumeId: id, VolumeCapabilities: wanted})

		return err
	}

	for name, test := range map[string]struct {
		err  error
		want codes.Code
	}{
		"attach":                           {attach(good, false), codes.NotFound},
		"attach, incomplete":               {attach(incomplete, false), codes.InvalidArgument},
		"attach, not advertised":           {attach(unadvertised, false), codes.InvalidArgument},
		"attach, read-only":                {attach(good, true), codes.InvalidArgument},
		"expand":                           {expand(mib, good), codes.NotFound},
		"expand, without a capability":     {expand(mib, nil), codes.NotFound},
		"expand, without a size":           {expand(nil, good), codes.InvalidArgument},
		"expand, incomplete":               {expand(mib, incomplete), codes.InvalidArgument},
		"expand, not advertised":           {expand(mib, unadvertised), codes.InvalidArgument},
		"modify":                           {modify(map[string]string{volume.KeyReadIOPS: "10"}), codes.NotFound},
		"modify, nothing":                  {modify(nil), codes.InvalidArgument},
		"modify, an unknown parameter":     {modify(map[string]string{"colour": "red"}), codes.InvalidArgument},
		"validate":                         {validate(good), codes.NotFound},
		"validate, not advertised":         {validate(unadvertised), codes.NotFound},
		"validate, one that is incomplete": {validate(good, incomplete), codes.InvalidArgument},
		"validate, nothing":                {validate(), codes.InvalidArgument},
	} {
		rpccode.Require(t, test.err, test.want, "%s", name)
	}
}

// TestDefaultsOfTheConfiguration: what New makes of it.
func TestDefaultsOfTheConfiguration(t *testing.T) {
	t.Parallel()

	pools, err := poolset.Open(map[string]string{"default": t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pools.Close()) })

	config := Config{Pools: pools, Log: slog.New(slog.DiscardHandler)}
	newStore := func() *state.Store { return state.New(t.TempDir(), state.Options{Log: config.Log}) }
	config.Store = newStore()

	_, err = New(config)
	require.ErrorIs(t, err, errConfig, "want: an admission is needed")

	config.Admission = &pool.Admission{}
	made, err := New(config)
	require.NoError(t, err)
	require.Equal(t, DefaultCopyGrace, made.config.CopyGrace)
	require.Equal(t, NoLocalNode{}, made.config.LocalNode)

	config.CopyGrace, config.Store = time.Hour, newStore()
	made, err = New(config)
	require.NoError(t, err)
	require.Equal(t, time.Hour, made.config.CopyGrace)

	within := func(context.Context) error { return errBroken }
	require.ErrorIs(t, NoLocalNode{}.WithFrozen(t.Context(), nil, within), errBroken, "want: it returns what happens within")
}

// TestPagesHaveALimit: a page is as large as a response may be, and not larger; its token is its last
// entry.
func TestPagesHaveALimit(t *testing.T) {
	t.Parallel()

	const ids = "abc"

	sized := func(bytes int) *csi.Volume {
		entry := &csi.Volume{VolumeId: strings.Repeat("x", bytes)}
		entry.VolumeId = entry.GetVolumeId()[:2*bytes-proto.Size(entry)]
		require.Equal(t, bytes, proto.Size(entry), "want: the entry has that size")

		return entry
	}

	for more, want := range []int{2, 1} {
		listed, err := newPage[*csi.Volume]("List", &csi.ListVolumesRequest{})
		require.NoError(t, err)

		half := maxResponseBytes/2 - 6
		require.True(t, listed.add(ids[:1], sized(half)), "want: the first entry is added")
		require.Equal(t, want == 2, listed.add(ids[1:2], sized(half+more)), "want: the limit itself is allowed")
		require.Len(t, listed.entries, want, "want: what is refused is not in the page")
		require.False(t, listed.add(ids[2:], sized(half)), "want: the page is full")
		require.Equal(t, ids[want-1:want], listed.nextToken, "want: the token is the last entry")
	}
}

// TestUnrecordedObjectsAreLogged, which are found in a pool.
func TestUnrecordedObjectsAreLogged(t *testing.T) {
	t.Parallel()

	var log logs.Buffer

	s := newSite(t, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	p, known := s.served(), s.create("known")
	knownSnapshot := s.snapshot("known", known)
	full, empty, unknown := newID(t), newID(t), newID(t)

	require.NoError(t, p.Images.Create(empty, mib, false))
	require.NoError(t, os.WriteFile(p.ObjectPath(pool.Object{ID: full, Backing: volume.BackingImage}), []byte("content"), 0o600))
	require.NoError(t, os.WriteFile(p.ObjectPath(pool.Object{ID: unknown, Backing: volume.BackingImage, Snapshot: true}), nil, 0o600))

	before := len(log.String())
	require.NoError(t, s.RecoverPool(t.Context(), p))

	said := log.String()[before:]
	require.Equal(t, 2, strings.Count(said, "\n"), "want: two findings, not %s", said)
	require.Regexp(t, "holds data or is in use is in the pool but not in the state.*"+full, said)
	require.Regexp(t, "a snapshot is in the pool but not in the state.*"+unknown, said)

	for _, each := range []string{known, knownSnapshot, empty} {
		require.NotContains(t, said, each)
	}
}

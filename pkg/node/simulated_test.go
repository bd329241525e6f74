package node_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/poolset"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

const (
	imageID     = "01890000-0000-7000-8000-000000000001"
	directoryID = "01890000-0000-7000-8000-000000000002"
	missingID   = "01890000-0000-7000-8000-000000000003"
	imageBytes  = 1 << 20

	staging, target = "/kubelet/staging", "/kubelet/target"

	writer      = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	multiWriter = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
)

// simulated is a simulated node whose pool has an image and a directory.
type simulated struct {
	*node.Simulated

	directory string
	pool      *pool.Pool
}

func newSimulated(t *testing.T, change func(*node.Common)) *simulated {
	t.Helper()

	s := &simulated{directory: t.TempDir()}
	s.start(t, change)
	require.NoError(t, s.pool.Images.Create(imageID, imageBytes, false))
	require.NoError(t, s.pool.Directories.Create(directoryID, imageBytes, false))

	return s
}

// start starts the node over what is in its directory, and returns what ends it.
func (s *simulated) start(t *testing.T, change func(*node.Common)) (stop func()) {
	t.Helper()

	pools, err := poolset.Open(map[string]string{"default": filepath.Join(s.directory, "pool")})
	require.NoError(t, err)
	s.pool, err = pools.Get("default")
	require.NoError(t, err)

	log := slog.New(slog.DiscardHandler)
	config := node.Common{
		NodeID: "here", Pools: pools, Operations: operation.NewGroup(), Log: log,
		Store: state.New(filepath.Join(s.directory, "state"), state.Options{Owner: t.Name(), Log: log}),
	}

	if change != nil {
		change(&config)
	}

	s.Simulated = node.NewSimulated(config)
	require.NoError(t, config.Store.Open(t.Context()))
	require.NoError(t, s.Recover(t.Context()))

	stopped := false
	stop = func() {
		if !stopped {
			stopped = true

			require.NoError(t, config.Store.Close())
			require.NoError(t, pools.Close())
		}
	}
	t.Cleanup(stop)

	return stop
}

// without changes a configuration to advertise all capabilities but some.
func without(t *testing.T, names ...string) func(*node.Common) {
	t.Helper()

	left, err := capability.Without(names...)
	require.NoError(t, err)

	return func(c *node.Common) { c.Capabilities = left }
}

func stageRequest(id string) *csi.NodeStageVolumeRequest {
	request := &csi.NodeStageVolumeRequest{
		VolumeId: id, StagingTargetPath: staging, VolumeCapability: csiclient.MountCapability(multiWriter, ""), VolumeContext: map[string]string{},
	}
	if id == directoryID {
		request.VolumeContext[volume.KeyBacking] = string(volume.BackingDirectory)
	}

	return request
}

func publishRequest(id, path string) *csi.NodePublishVolumeRequest {
	return &csi.NodePublishVolumeRequest{
		VolumeId: id, StagingTargetPath: staging, TargetPath: path, VolumeCapability: csiclient.MountCapability(multiWriter, ""),
	}
}

// unstagedRequest is that of a CO that does not stage.
func unstagedRequest(id, path string) *csi.NodePublishVolumeRequest {
	r := publishRequest(id, path)
	r.StagingTargetPath = ""

	return r
}

func inlineRequest(id, path string) *csi.NodePublishVolumeRequest {
	r := unstagedRequest(id, path)
	r.VolumeContext = map[string]string{volume.KeyEphemeral: "true"}

	return r
}

func (s *simulated) stage(t *testing.T, request *csi.NodeStageVolumeRequest) error {
	t.Helper()

	_, err := s.NodeStageVolume(t.Context(), request)

	return err
}

func (s *simulated) publish(t *testing.T, request *csi.NodePublishVolumeRequest) error {
	t.Helper()

	_, err := s.NodePublishVolume(t.Context(), request)

	return err
}

func (s *simulated) unpublish(t *testing.T, id, path string) error {
	t.Helper()

	_, err := s.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: path})

	return err
}

func (s *simulated) unstage(t *testing.T, id, path string) error {
	t.Helper()

	_, err := s.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: path})

	return err
}

// usedAt requires where the controller finds the volume, "" for nowhere.
func (s *simulated) usedAt(t *testing.T, want, id string) {
	t.Helper()

	path, used, err := s.InUse(id)
	require.NoError(t, err)
	require.Equal(t, want, path, "where volume %s is in use", id)
	require.Equal(t, want != "", used, "whether volume %s is in use", id)
}

// up stages and publishes the volume.
func (s *simulated) up(t *testing.T, id string) {
	t.Helper()
	require.NoError(t, s.stage(t, stageRequest(id)))
	require.NoError(t, s.publish(t, publishRequest(id, target)))
}

// answer is the outcome of a call: its code, and a part of the message.
type answer struct {
	code codes.Code
	says string
}

func (a answer) require(t *testing.T, err error, what string) {
	t.Helper()
	rpccode.Require(t, err, a.code, what)

	if a.says != "" {
		errtext.Require(t, err, a.says, what)
	}
}

func TestSimulatedStage(t *testing.T) {
	t.Parallel()

	invalid := func(says string) answer { return answer{codes.InvalidArgument, says} }

	for name, test := range map[string]struct {
		change func(r *csi.NodeStageVolumeRequest)
		want   answer
	}{
		"as it is":               {func(*csi.NodeStageVolumeRequest) {}, answer{}},
		"no id":                  {func(r *csi.NodeStageVolumeRequest) { r.VolumeId = "" }, invalid("volume_id is missing")},
		"no path":                {func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = "" }, invalid("staging_target_path")},
		"a relative path":        {func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = "staging" }, invalid("staging_target_path")},
		"no capability":          {func(r *csi.NodeStageVolumeRequest) { r.VolumeCapability = nil }, invalid("volume_capability")},
		"a flag that is refused": {func(r *csi.NodeStageVolumeRequest) { r.VolumeCapability.GetMount().MountFlags = []string{"bind"} }, invalid("volume_capability")},
		"an unknown backing":     {func(r *csi.NodeStageVolumeRequest) { r.VolumeContext[volume.KeyBacking] = "tape" }, invalid("volume_context")},
		"a group":                {func(r *csi.NodeStageVolumeRequest) { r.VolumeCapability.GetMount().VolumeMountGroup = "1" }, invalid("VOLUME_MOUNT_GROUP")},
		"a slot that is no number": {
			func(r *csi.NodeStageVolumeRequest) { r.PublishContext = map[string]string{volume.KeySlot: "x"} }, invalid("publish_context: slot"),
		},
		"a negative slot": {
			func(r *csi.NodeStageVolumeRequest) { r.PublishContext = map[string]string{volume.KeySlot: "-1"} }, invalid("publish_context: slot"),
		},
		"the first slot":   {func(r *csi.NodeStageVolumeRequest) { r.PublishContext = map[string]string{volume.KeySlot: "0"} }, answer{}},
		"an id of no pool": {func(r *csi.NodeStageVolumeRequest) { r.VolumeId = "vol-1" }, answer{codes.NotFound, "does not exist"}},
		"a missing volume": {func(r *csi.NodeStageVolumeRequest) { r.VolumeId = missingID }, answer{codes.NotFound, ""}},
		"several nodes":    {func(r *csi.NodeStageVolumeRequest) { r.VolumeCapability.AccessMode.Mode = 5 }, answer{codes.FailedPrecondition, "--shared"}},
		"a filesystem":     {func(r *csi.NodeStageVolumeRequest) { r.VolumeCapability.GetMount().FsType = "xfs" }, answer{}},
		"another pool":     {func(r *csi.NodeStageVolumeRequest) { r.VolumeContext[volume.KeyPool] = "none" }, answer{codes.FailedPrecondition, "which this node does not have"}},
		"another backing":  {func(r *csi.NodeStageVolumeRequest) { r.VolumeContext[volume.KeyBacking] = "directory" }, answer{codes.NotFound, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := newSimulated(t, without(t, "VOLUME_MOUNT_GROUP"))
			r := stageRequest(imageID)
			test.change(r)
			test.want.require(t, s.stage(t, r), "NodeStageVolume")

			if test.want.code == codes.OK {
				s.usedAt(t, staging, imageID)
			} else {
				s.usedAt(t, "", imageID)
			}
		})
	}
}

// TestSimulatedStaging repeats a staging, and ends it.
func TestSimulatedStaging(t *testing.T) {
	t.Parallel()

	s := newSimulated(t, nil)
	require.NoError(t, s.unstage(t, imageID, staging), "a volume that is not staged can be unstaged")
	require.NoError(t, s.stage(t, stageRequest(imageID)))
	require.NoError(t, s.stage(t, stageRequest(imageID)), "a staging can be repeated")

	elsewhere, other := stageRequest(imageID), stageRequest(imageID)
	elsewhere.StagingTargetPath = "/elsewhere"
	answer{codes.FailedPrecondition, "stage volume " + imageID + " at /elsewhere: it is staged at " + staging}.require(t, s.stage(t, elsewhere), "another path")

	other.VolumeCapability = csiclient.MountCapability(writer, "")
	answer{codes.AlreadyExists, "access mode"}.require(t, s.stage(t, other), "another access mode")

	answer{codes.InvalidArgument, "volume_id"}.require(t, s.unstage(t, "", staging), "no id")
	answer{codes.InvalidArgument, "staging_target_path is missing"}.require(t, s.unstage(t, imageID, ""), "no path")
	require.NoError(t, s.unstage(t, imageID, "/elsewhere"))
	s.usedAt(t, staging, imageID)

	require.NoError(t, s.publish(t, publishRequest(imageID, target)))
	answer{codes.FailedPrecondition, "it is published at " + target}.require(t, s.unstage(t, imageID, staging), "published")
	s.usedAt(t, target, imageID)

	require.NoError(t, s.unpublish(t, imageID, target))
	require.NoError(t, s.unstage(t, imageID, staging+"/"))
	s.usedAt(t, "", imageID)
}

func TestSimulatedPublish(t *testing.T) {
	t.Parallel()

	invalid := func(says string) answer { return answer{codes.InvalidArgument, says} }
	refused := func(says string) answer { return answer{codes.FailedPrecondition, says} }

	for name, test := range map[string]struct {
		change func(r *csi.NodePublishVolumeRequest)
		want   answer
	}{
		"as it is":               {func(*csi.NodePublishVolumeRequest) {}, answer{}},
		"no id":                  {func(r *csi.NodePublishVolumeRequest) { r.VolumeId = "" }, invalid("volume_id is missing")},
		"no target":              {func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "" }, invalid("target_path is missing")},
		"a relative target":      {func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "target" }, invalid("target_path: ")},
		"no capability":          {func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability = nil }, invalid("volume_capability")},
		"a flag that is refused": {func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.GetMount().MountFlags = []string{"bind"} }, invalid("volume_capability")},
		"a group":                {func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.GetMount().VolumeMountGroup = "1" }, invalid("VOLUME_MOUNT_GROUP")},
		"an id of no pool":       {func(r *csi.NodePublishVolumeRequest) { r.VolumeId = "vol-1" }, answer{codes.NotFound, "does not exist"}},
		"no staging path":        {func(r *csi.NodePublishVolumeRequest) { r.StagingTargetPath = "" }, refused("staging_target_path is missing")},
		"another staging path":   {func(r *csi.NodePublishVolumeRequest) { r.StagingTargetPath = "/other" }, refused("it is staged at " + staging + ", not at /other")},
		"not staged":             {func(r *csi.NodePublishVolumeRequest) { r.VolumeId = directoryID }, refused("it is not staged")},
		"at its staging path":    {func(r *csi.NodePublishVolumeRequest) { r.TargetPath = staging }, invalid("is where the volume is staged")},
		"as block":               {func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability = csiclient.BlockCapability(multiWriter) }, refused("access type")},
		"another filesystem":     {func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.GetMount().FsType = "xfs" }, refused("fs_type")},
		"two slashes": {func(r *csi.NodePublishVolumeRequest) {
			r.StagingTargetPath, r.TargetPath = "/kubelet//staging/", "//kubelet/target/"
		}, answer{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := newSimulated(t, without(t, "VOLUME_MOUNT_GROUP"))
			require.NoError(t, s.stage(t, stageRequest(imageID)))

			r := publishRequest(imageID, target)
			test.change(r)
			test.want.require(t, s.publish(t, r), "NodePublishVolume")

			if test.want.code == codes.OK {
				s.usedAt(t, target, imageID)
			} else {
				s.usedAt(t, staging, imageID)
			}
		})
	}
}

// TestSimulatedTargets publishes a volume at several targets, and ends one after the other.
func TestSimulatedTargets(t *testing.T) {
	t.Parallel()

	s := newSimulated(t, nil)
	s.up(t, imageID)
	require.NoError(t, s.publish(t, publishRequest(imageID, target)), "a publication can be repeated")

	reader := publishRequest(imageID, target)
	reader.Readonly = true
	answer{codes.AlreadyExists, "readonly false, not true"}.require(t, s.publish(t, reader), "read-only at the same target")

	alone := publishRequest(imageID, "/alone")
	alone.VolumeCapability = csiclient.MountCapability(writer, "")
	answer{codes.FailedPrecondition, "it is published at " + target}.require(t, s.publish(t, alone), "a mode that allows one target")

	require.NoError(t, s.publish(t, publishRequest(imageID, "/second")))

	for what, err := range map[string]error{
		"volume_id":              s.unpublish(t, "", target),
		"target_path is missing": s.unpublish(t, imageID, ""),
	} {
		answer{codes.InvalidArgument, what}.require(t, err, "NodeUnpublishVolume")
	}

	require.NoError(t, s.unpublish(t, missingID, target), "an unknown volume is not published")
	require.NoError(t, s.unpublish(t, imageID, "/third"), "nothing is published there")
	s.usedAt(t, target, imageID)
	require.NoError(t, s.unpublish(t, imageID, target+"/"))
	s.usedAt(t, "/second", imageID)
	require.NoError(t, s.unpublish(t, imageID, "/second"))
	s.usedAt(t, staging, imageID)
}

// TestSimulatedWithoutStaging publishes where the CO does not stage, and inline ephemeral volumes.
func TestSimulatedWithoutStaging(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		change  func(*node.Common)
		request func(id, path string) *csi.NodePublishVolumeRequest
		missing codes.Code
	}{
		"the CO does not stage": {without(t, "STAGE_UNSTAGE_VOLUME"), unstagedRequest, codes.NotFound},
		// It is created by its publication.
		"inline": {nil, inlineRequest, codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := newSimulated(t, test.change)
			rpccode.Require(t, s.publish(t, test.request(missingID, "/missing")), test.missing, "a volume that no pool has")

			for _, path := range []string{target, "/second", target} {
				require.NoError(t, s.publish(t, test.request(imageID, path)), path)
			}

			unknown := test.request(directoryID, target)
			if unknown.VolumeContext == nil {
				unknown.VolumeContext = map[string]string{}
			}

			unknown.VolumeContext[volume.KeyBacking] = "tape"
			answer{codes.InvalidArgument, "volume_context"}.require(t, s.publish(t, unknown), "an unknown backing")

			require.NoError(t, s.unpublish(t, imageID, target))
			s.usedAt(t, "/second", imageID)
			require.NoError(t, s.unpublish(t, imageID, "/second"))
			s.usedAt(t, "", imageID)
		})
	}
}

// TestSimulatedRestart has the next start find what is staged and published.
func TestSimulatedRestart(t *testing.T) {
	t.Parallel()

	s := &simulated{directory: t.TempDir()}
	stop := s.start(t, nil)
	require.NoError(t, s.pool.Images.Create(imageID, imageBytes, false))
	s.up(t, imageID)
	stop()

	s.start(t, nil)
	s.usedAt(t, target, imageID)
	require.NoError(t, s.unpublish(t, imageID, target))
	require.NoError(t, s.unstage(t, imageID, staging))
}

// TestSimulatedNeedsItsState: what cannot be recorded is refused.
func TestSimulatedNeedsItsState(t *testing.T) {
	t.Parallel()

	var store *state.Store

	s := newSimulated(t, func(c *node.Common) { store = c.Store })
	s.up(t, imageID)
	require.NoError(t, s.pool.Images.Create(unknownID, imageBytes, false))
	require.NoError(t, s.stage(t, stageRequest(directoryID)))
	require.NoError(t, s.publish(t, inlineRequest(missingID, "/inline")))
	require.NoError(t, store.Close())

	for what, err := range map[string]error{
		"stage":               s.stage(t, stageRequest(unknownID)),
		"publish":             s.publish(t, publishRequest(imageID, "/second")),
		"unpublish":           s.unpublish(t, imageID, target),
		"unpublish an inline": s.unpublish(t, missingID, "/inline"),
		"unstage":             s.unstage(t, directoryID, staging),
	} {
		require.ErrorIs(t, err, state.ErrNotOpen, "want: %s fails", what)
	}
}

// TestSimulatedIsTheLocalNode is what a controller in the process asks for.
func TestSimulatedIsTheLocalNode(t *testing.T) {
	t.Parallel()

	s := newSimulated(t, func(c *node.Common) { c.Segments, c.MaxVolumesPerNode = map[string]string{"zone": "a"}, 7 })
	require.True(t, s.Serves("here"), "want: the node has its own id")
	require.False(t, s.Serves("there"), "want: the node has no other id")
	require.True(t, s.CanFreeze(imageID), "want: nothing writes to a volume")

	within := errors.New("within")
	require.ErrorIs(t, s.WithFrozen(t.Context(), []string{imageID}, func(context.Context) error { return within }), within)

	info, err := s.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	require.NoError(t, err)
	require.Equal(t, "here", info.GetNodeId())
	require.EqualValues(t, 7, info.GetMaxVolumesPerNode(), "want: the limit of the configuration")
	require.Equal(t, map[string]string{"zone": "a"}, info.GetAccessibleTopology().GetSegments())

	everywhere := newSimulated(t, nil)
	info, err = everywhere.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	require.NoError(t, err)
	require.Nil(t, info.GetAccessibleTopology(), "want: without segments there is no topology")

	capabilities, err := everywhere.NodeGetCapabilities(t.Context(), &csi.NodeGetCapabilitiesRequest{})
	require.NoError(t, err)
	require.NotEmpty(t, capabilities.GetCapabilities(), "want: the capabilities of a node")
}

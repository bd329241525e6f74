package publishing_test

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// access is one row of the table of access modes: what each call answers.
type access struct {
	mode csi.VolumeCapability_AccessMode_Mode
	// create is CreateVolume's answer; OK for what Validate confirms.
	create codes.Code
	// secondNode and secondTarget are the answers to a second attachment and a
	// second publication.
	secondNode, secondTarget codes.Code
}

// accessKind is where the rows differ.
type accessKind struct {
	name       string
	shared     bool
	parameters map[string]string
	capability func(csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability
	rows       []access
}

func accessKinds() []accessKind {
	const (
		ok, invalid, failed = codes.OK, codes.InvalidArgument, codes.FailedPrecondition
		unknown             = csi.VolumeCapability_AccessMode_UNKNOWN
	)

	oneNode := []access{
		{unknown, invalid, invalid, invalid},
		{harness.Writer, ok, failed, failed},
		{harness.ReaderOnly, ok, failed, failed},
		{harness.SingleWriter, ok, failed, failed},
		{harness.MultiWriter, ok, failed, ok},
	}
	nowhere := []access{
		{harness.NodesRead, invalid, invalid, invalid}, {harness.NodesOne, invalid, invalid, invalid}, {harness.NodesWrite, invalid, invalid, invalid},
	}
	everywhere := []access{{harness.NodesRead, ok, ok, ok}, {harness.NodesOne, ok, failed, ok}, {harness.NodesWrite, ok, ok, ok}}
	// An image is written on one node at a time.
	readable := []access{{harness.NodesRead, ok, ok, ok}, nowhere[1], nowhere[2]}

	mounted := func(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
		return csiclient.MountCapability(mode, "")
	}

	return []accessKind{
		{"image mounted", false, nil, mounted, append(oneNode[:5:5], nowhere...)},
		{"image as block", false, nil, csiclient.BlockCapability, append(oneNode[:5:5], nowhere...)},
		{"directory", false, harness.DirectoryBacked(), mounted, append(oneNode[:5:5], nowhere...)},
		{"shared image mounted", true, nil, mounted, append(oneNode[:5:5], readable...)},
		{"shared image as block", true, nil, csiclient.BlockCapability, append(oneNode[:5:5], readable...)},
		{"shared directory", true, harness.DirectoryBacked(), mounted, append(oneNode[:5:5], everywhere...)},
	}
}

// TestEachAccessModeAllowsItsPublications walks every cell of the table: at first, after a SIGKILL, and
// after a reboot.
func TestEachAccessModeAllowsItsPublications(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, kind := range accessKinds() {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()

			d := harness.StartProcess(t, harness.TwoNodes, func(c *driver.Config) { c.Shared = kind.shared })

			var walks []*cell

			for _, row := range kind.rows {
				if w := createCell(t, d, kind, row); w != nil {
					walks = append(walks, w)
				}
			}

			accidents := []func(){
				func() { d.Kill(t) },
				func() { reboot(t, d) },
				func() {},
			}

			for _, accident := range accidents {
				for _, w := range walks {
					w.attached(t, d)
					w.staged(t, d)
					w.published(t, d)
				}

				accident()
			}

			for _, w := range walks {
				w.takenDown(t, d)
			}
		})
	}
}

// cell is a volume of one row.
type cell struct {
	row   access
	claim *csiclient.Publication
	// otherwise is a capability that the volume could have had as well.
	otherwise *csi.VolumeCapability
}

// createCell walks the first column. It returns nil where there is no more.
func createCell(t *testing.T, d *harness.Driver, kind accessKind, row access) *cell {
	t.Helper()

	capability := kind.capability(row.mode)
	request := &csi.CreateVolumeRequest{
		Name: row.mode.String(), CapacityRange: harness.RequiredBytes(16 * harness.MiB), Parameters: kind.parameters,
		VolumeCapabilities: []*csi.VolumeCapability{capability},
	}
	ctx := conformance.Exercise(t.Context(), tried(row, "volume_capabilities", func(r *csi.CreateVolumeRequest) bool {
		return isOf(row.mode, r.GetVolumeCapabilities()...)
	}))
	_, err := d.CreateVolume(ctx, request)
	harness.RequireCode(t, err, row.create)

	if row.create != codes.OK {
		request.VolumeCapabilities = []*csi.VolumeCapability{kind.capability(harness.Writer)}
	}

	claim := harness.NewVolume(t, d, request)
	ctx = conformance.Exercise(t.Context(), tried(row, "volume_capabilities", func(r *csi.ValidateVolumeCapabilitiesRequest) bool {
		return isOf(row.mode, r.GetVolumeCapabilities()...)
	}))
	validated, err := d.ValidateVolumeCapabilities(ctx, &csi.ValidateVolumeCapabilitiesRequest{
		VolumeId: claim.VolumeID, VolumeCapabilities: []*csi.VolumeCapability{capability},
	})

	if row.mode == csi.VolumeCapability_AccessMode_UNKNOWN {
		harness.RequireCode(t, err, codes.InvalidArgument, "access mode")
	} else {
		require.NoError(t, err)
		require.Equal(t, row.create == codes.OK, validated.GetConfirmed() != nil, "%s", row.mode)
		require.Equal(t, row.create != codes.OK, validated.GetMessage() != "", "%s", row.mode)
	}

	claim.Capability = capability

	if row.create != codes.OK {
		ctx = conformance.Exercise(t.Context(), tried(row, "volume_capability", func(r *csi.ControllerPublishVolumeRequest) bool {
			return isOf(row.mode, r.GetVolumeCapability())
		}))
		harness.RequireCode(t, d.Attach(ctx, claim), codes.InvalidArgument)
		harness.DeleteVolume(t, d, claim.VolumeID)

		return nil
	}

	if row.mode == harness.NodesRead && capability.GetMount() != nil && kind.parameters == nil {
		formatOnce(t, d, claim)
	}

	otherwise := kind.capability(harness.MultiWriter)
	if row.mode == harness.MultiWriter {
		otherwise = kind.capability(harness.Writer)
	}

	return &cell{row, claim, otherwise}
}

// tried is the condition of a call for a mode that the table supports or does not. UNKNOWN is a
// mode that is missing.
func tried[R proto.Message](row access, field string, holds func(R) bool) conformance.Condition {
	switch {
	case row.mode == csi.VolumeCapability_AccessMode_UNKNOWN:
		return conformance.Is(field + ".access_mode.mode missing")
	case row.create == codes.OK:
		return conformance.Where(field+" supported", holds)
	default:
		return conformance.Where(field+" unsupported", holds)
	}
}

func isOf(mode csi.VolumeCapability_AccessMode_Mode, capabilities ...*csi.VolumeCapability) bool {
	return slices.ContainsFunc(capabilities, func(c *csi.VolumeCapability) bool { return c.GetAccessMode().GetMode() == mode })
}

// formatOnce is what has to happen before several nodes can only read.
func formatOnce(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
	t.Helper()

	harness.RequireCode(t, d.Stage(t.Context(), claim), codes.FailedPrecondition, "holds no filesystem")

	first := *claim
	first.Capability = csiclient.MountCapability(harness.Writer, "")

	require.NoError(t, d.Stage(t.Context(), &first))
	require.NoError(t, d.Unstage(t.Context(), &first))
}

func (c *cell) attached(t *testing.T, d *harness.Driver) {
	t.Helper()

	ctx := t.Context()
	require.NoError(t, d.Attach(ctx, c.claim), c.row.mode)

	first := c.claim.PublishContext
	require.NoError(t, d.Attach(ctx, c.claim), c.row.mode)
	require.Equal(t, first, c.claim.PublishContext)

	other := *c.claim
	other.Capability = c.otherwise
	harness.RequireCode(t, d.Attach(ctx, &other), codes.AlreadyExists)

	other = *c.claim
	other.ReadOnly = true
	harness.RequireCode(t, d.Attach(ctx, &other), codes.AlreadyExists)

	other = *c.claim
	other.NodeID = "no-node"
	harness.RequireCode(t, d.Attach(ctx, &other), codes.NotFound, "no-node")

	other = *c.claim
	other.VolumeID = harness.UnknownVolume
	harness.RequireCode(t, d.Attach(ctx, &other), codes.NotFound, harness.UnknownVolume)
	require.NoError(t, d.Detach(ctx, &other))

	other = *c.claim
	other.NodeID = harness.SecondNode

	if c.row.secondNode == codes.OK {
		require.NoError(t, d.Attach(ctx, &other), c.row.mode)
		require.NoError(t, d.Detach(ctx, &other), c.row.mode)
	} else {
		harness.RequireCode(t, d.Attach(ctx, &other), c.row.secondNode, harness.NodeID)
	}

	// A mode that suffers others does not help the newcomer that does not.
	other.Capability = &csi.VolumeCapability{
		AccessType: c.claim.Capability.GetAccessType(),
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: harness.SingleWriter},
	}
	harness.RequireCode(t, d.Attach(ctx, &other), codes.FailedPrecondition, harness.NodeID)
}

func (c *cell) staged(t *testing.T, d *harness.Driver) {
	t.Helper()

	ctx := t.Context()
	require.NoError(t, d.Stage(ctx, c.claim), c.row.mode)
	require.NoError(t, d.Stage(ctx, c.claim), c.row.mode)

	other := *c.claim
	other.Capability = c.otherwise
	harness.RequireCode(t, d.Stage(ctx, &other), codes.AlreadyExists)

	other = *c.claim
	other.Capability = csiclient.MountCapability(csi.VolumeCapability_AccessMode_UNKNOWN, "")
	harness.RequireCode(t, d.Stage(ctx, &other), codes.InvalidArgument)
}

func (c *cell) published(t *testing.T, d *harness.Driver) {
	t.Helper()

	ctx := t.Context()
	require.NoError(t, d.Publish(ctx, c.claim), c.row.mode)
	require.NoError(t, d.Publish(ctx, c.claim), c.row.mode)
	c.writable(t)

	other := *c.claim
	other.Capability = csiclient.MountCapability(csi.VolumeCapability_AccessMode_UNKNOWN, "")
	harness.RequireCode(t, d.Publish(ctx, &other), codes.InvalidArgument)

	other = *c.claim
	other.Capability = c.otherwise
	harness.RequireCode(t, d.Publish(ctx, &other), codes.AlreadyExists)

	other = *c.claim
	other.ReadOnly = true

	if c.row.mode == harness.ReaderOnly || c.row.mode == harness.NodesRead {
		// It is read-only already.
		require.NoError(t, d.Publish(ctx, &other))
	} else {
		harness.RequireCode(t, d.Publish(ctx, &other), codes.AlreadyExists)
	}

	second := harness.AnotherTarget(c.claim, "second")

	if c.row.secondTarget == codes.OK {
		require.NoError(t, d.Publish(ctx, second), c.row.mode)
		require.NoError(t, d.Unpublish(ctx, second), c.row.mode)
	} else {
		harness.RequireCode(t, d.Publish(ctx, second), c.row.secondTarget, c.claim.TargetPath)
		require.NoDirExists(t, second.TargetPath)
		require.NoFileExists(t, second.TargetPath)
	}

	second.Capability = &csi.VolumeCapability{
		AccessType: c.claim.Capability.GetAccessType(),
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: harness.SingleWriter},
	}
	harness.RequireCode(t, d.Publish(ctx, second), codes.FailedPrecondition, c.claim.TargetPath)

	require.NoError(t, d.Unpublish(ctx, second))
	require.NoError(t, d.Unpublish(ctx, c.claim))
	require.NoError(t, d.Unpublish(ctx, c.claim))
	require.NoError(t, d.Publish(ctx, c.claim))
	c.writable(t)
}

// writable tries to write where the mode allows it, and where it does not.
func (c *cell) writable(t *testing.T) {
	t.Helper()

	path := c.claim.TargetPath
	if c.claim.Capability.GetMount() != nil {
		path = filepath.Join(path, "data")
	}

	err := harness.WriteThrough(path)

	conformance.Shows(t, "NodePublishVolume", c.row.mode.String()+" given", "what the mode allows can be written, and nothing else")

	switch {
	case c.row.mode != harness.ReaderOnly && c.row.mode != harness.NodesRead:
		require.NoError(t, err, c.row.mode)
	case c.claim.Capability.GetMount() != nil:
		require.ErrorIs(t, err, unix.EROFS, c.row.mode)
	default:
		require.Error(t, err, c.row.mode)
		require.True(t, errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES), "%v", err)
	}

	for _, rpc := range []string{"ControllerPublishVolume", "NodePublishVolume"} {
		conformance.Shows(t, rpc, "volume_capability "+c.row.mode.String(), "used as the mode says")
	}
}

func (c *cell) takenDown(t *testing.T, d *harness.Driver) {
	t.Helper()

	_, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: c.claim.VolumeID})
	harness.RequireCode(t, err, codes.FailedPrecondition, harness.NodeID)

	harness.TakeDown(t, d, c.claim)
	harness.TakeDown(t, d, c.claim)
	harness.DeleteVolume(t, d, c.claim.VolumeID)
}

// TestSingleNodeAttachmentIsNotJoined: a volume that is attached for one node is not joined,
// whatever mode the next one asks for, on another node and on the same one.
func TestSingleNodeAttachmentIsNotJoined(t *testing.T) {
	t.Parallel()

	t.Run("nodes", func(t *testing.T) {
		t.Parallel()

		d := harness.Start(t, harness.SharedPool, harness.TwoNodes)
		claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
			Parameters:         harness.DirectoryBacked(),
			VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, ""), csiclient.MountCapability(harness.NodesWrite, "")},
		})
		require.NoError(t, d.Attach(t.Context(), claim))
		t.Cleanup(func() { harness.TakeDown(t, d, claim) })

		second := *claim
		second.NodeID, second.Capability = harness.SecondNode, csiclient.MountCapability(harness.NodesWrite, "")
		harness.RequireCode(t, d.Attach(t.Context(), &second), codes.FailedPrecondition, claim.NodeID)
	})

	t.Run("targets", func(t *testing.T) {
		t.Parallel()

		d := harness.Start(t)
		claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
			Parameters:         harness.DirectoryBacked(),
			VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.SingleWriter, ""), csiclient.MountCapability(harness.MultiWriter, "")},
		})
		harness.BringUp(t, d, claim)

		second := harness.AnotherTarget(claim, "second")
		second.Capability = csiclient.MountCapability(harness.MultiWriter, "")
		harness.RequireCode(t, d.Publish(t.Context(), second), codes.FailedPrecondition, claim.TargetPath)
	})
}

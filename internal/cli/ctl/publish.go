package ctl

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/cobra"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
)

// publicationFlags are the flags for the node and the paths of a volume.
type publicationFlags struct {
	node, staging, target string
}

func (f *publicationFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.node, "node", "", "the node's id (default: that of the socket's node service)")
	cmd.Flags().StringVar(&f.staging, "staging", "", "absolute path for the volume on its node")
	cmd.Flags().StringVar(&f.target, "target", "", "absolute path at which the volume is published")
}

// publication returns the flags' publication and the driver's capabilities; a missing node id
// comes from NodeGetInfo.
func (f *publicationFlags) publication(
	ctx context.Context, s *session, volumeID string,
) (*csiclient.Publication, csiclient.Capabilities, error) {
	caps, err := s.Capabilities(ctx)
	if err != nil {
		return nil, caps, err
	}

	claim := &csiclient.Publication{
		VolumeID:    volumeID,
		NodeID:      f.node,
		StagingPath: f.staging,
		TargetPath:  f.target,
	}

	if claim.NodeID == "" && caps.HasNode {
		info, err := s.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
		if err != nil {
			return nil, caps, err
		}

		claim.NodeID = info.GetNodeId()
	}

	return claim, caps, nil
}

func newPublishCommand(given *settings) *cobra.Command {
	var (
		where          publicationFlags
		use            capabilityFlags
		readOnly       bool
		volumeContext  keyValues
		publishContext keyValues
	)

	cmd := &cobra.Command{
		Use:   "publish VOLUME --staging PATH --target PATH",
		Short: "Publish a volume at a path: ControllerPublishVolume, NodeStageVolume, NodePublishVolume",
		Long: `Publish a volume at a path: ControllerPublishVolume, NodeStageVolume and
NodePublishVolume, each if the driver advertises it. The volume's context comes
from ControllerGetVolume; on a socket without a controller, give it and the
controller's publish context with flags.`,
		Args:              exactly(1),
		ValidArgsFunction: completeNames(given, names.Volume, 0, 0),
		RunE: given.inSession(naming(names.Volume, 0, 1, func(ctx context.Context, s *session) error {
			capability, err := use.capability()
			if err != nil {
				return err
			}

			claim, caps, err := where.publication(ctx, s, s.args[0])
			if err != nil {
				return err
			}

			claim.Capability, claim.ReadOnly = capability, readOnly
			claim.PublishContext = publishContext

			if claim.VolumeContext, err = s.contextOf(ctx, caps, claim.VolumeID); err != nil {
				return err
			}

			if len(volumeContext) > 0 {
				claim.VolumeContext = volumeContext
			}

			steps, err := s.PublishSteps(caps, claim)
			if err != nil {
				return asUsageUnlessNoNode(err)
			}

			return s.runSteps(ctx, steps, claim)
		})),
	}
	cmd.Flags().BoolVar(&readOnly, "readonly", false, "publish read-only")
	cmd.Flags().Var(&volumeContext, "volume-context", "instead of ControllerGetVolume's (repeatable)")
	cmd.Flags().Var(&publishContext, "publish-context", "of a controller on another socket (repeatable)")
	where.register(cmd)
	markRequired(cmd, "target")
	use.register(cmd)

	return cmd
}

func newUnpublishCommand(given *settings) *cobra.Command {
	var where publicationFlags

	cmd := &cobra.Command{
		Use:   "unpublish VOLUME [--staging PATH --target PATH]",
		Short: "Undo publish: NodeUnpublishVolume, NodeUnstageVolume, ControllerUnpublishVolume",
		Long: `Undo publish: NodeUnpublishVolume, NodeUnstageVolume and ControllerUnpublishVolume. Paths
that are not given are those that the driver reports. Without --target a volume that is published
at several paths is refused, and one that is published elsewhere, too, is neither unstaged nor
detached.`,
		Args:              exactly(1),
		ValidArgsFunction: completeNames(given, names.Volume, 0, 0),
		RunE: given.inSession(func(ctx context.Context, s *session) error {
			// A volume that is deleted may still have to be unpublished.
			if err := s.resolve(ctx, names.Volume, &s.args[0]); err != nil && !errors.Is(err, errNoObject) {
				return err
			}

			if where.target == "" {
				return s.umount(ctx, s.args[0])
			}

			if known := s.healthOf(ctx, s.args[0]); known != nil && where.staging == "" {
				where.staging = known.Staged
			}

			claim, caps, err := where.publication(ctx, s, s.args[0])
			if err != nil {
				return err
			}

			steps, err := s.UnpublishSteps(caps, claim)
			if err != nil {
				return asUsageUnlessNoNode(err)
			}

			return s.runSteps(ctx, steps, claim)
		}),
	}
	where.register(cmd)

	return cmd
}

// findPath fills in a missing path with the one at which the volume is published, or staged.
func (s *session) findPath(ctx context.Context, id string, path *string) error {
	if *path != "" {
		return nil
	}

	known := s.healthOf(ctx, id)

	switch {
	case known != nil && len(known.Published) > 0:
		*path = known.Published[0]
	case known != nil && known.Staged != "":
		*path = known.Staged
	default:
		return usage(fmt.Errorf("%w: --path, as the driver does not report where the volume is", errMissingFlag))
	}

	return nil
}

// asUsageUnlessNoNode returns a usage error for a missing flag, but not for a socket without
// a node service.
func asUsageUnlessNoNode(err error) error {
	if errors.Is(err, csiclient.ErrNoNodeService) {
		return err
	}

	return usage(err)
}

func (s *session) contextOf(ctx context.Context, caps csiclient.Capabilities, id string) (map[string]string, error) {
	if !caps.HasControllerRPC(csi.ControllerServiceCapability_RPC_GET_VOLUME) {
		return nil, nil //nolint:nilnil // A nil context is valid.
	}

	answer, err := s.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: id})
	if err != nil {
		return nil, err
	}

	return maps.Clone(answer.GetVolume().GetVolumeContext()), nil
}

// runSteps makes the calls in order and prints those that succeeded, also if one fails: they
// have to be undone.
func (s *session) runSteps(ctx context.Context, steps []csiclient.Step, claim *csiclient.Publication) error {
	var (
		rows = [][]string{{"CALL", "TOOK"}}
		made = []string{}
	)

	failed := func() error {
		for _, step := range steps {
			began := time.Now()

			if err := step.Call(ctx, claim); err != nil {
				return err
			}

			made = append(made, step.RPC)
			rows = append(rows, []string{step.RPC, time.Since(began).Round(time.Microsecond).String()})
		}

		return nil
	}()

	return errors.Join(failed, s.show(answers{"calls": made, "publish_context": claim.PublishContext}, rows))
}

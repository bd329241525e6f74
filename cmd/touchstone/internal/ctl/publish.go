package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/pflag"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
)

var errNoTarget = errors.New("--node and --staging need --target; without it the volume is unmounted where the driver reports it")

// definePublication defines the flags for the node and the paths of a volume.
func definePublication(flags *pflag.FlagSet, claim *csiclient.Publication) {
	flags.StringVar(&claim.NodeID, "node", "", "the node's id (default: that of the socket's node service)")
	flags.StringVar(&claim.StagingPath, "staging", "", "absolute path for the volume on its node")
	flags.StringVar(&claim.TargetPath, "target", "", "absolute path at which the volume is published")
}

// completePublication fills in the node's id by NodeGetInfo. It returns the driver's capabilities. For a
// publication with a capability it calls ControllerGetVolume, which has the volume's context, and the nodes
// that the volume is attached to.
func completePublication(
	ctx context.Context, co *csiclient.Client, claim *csiclient.Publication,
) (caps csiclient.Capabilities, attached []string, err error) {
	if caps, err = co.Capabilities(ctx); err != nil {
		return caps, nil, err
	}

	if claim.NodeID == "" && caps.HasNode {
		info, err := co.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
		if err != nil {
			return caps, nil, err
		}

		claim.NodeID = info.GetNodeId()
	}

	if claim.Capability == nil {
		return caps, nil, nil
	}

	answer, err := getVolume(ctx, co, caps, claim.VolumeID)
	if len(claim.VolumeContext) == 0 {
		claim.VolumeContext = answer.GetVolume().GetVolumeContext()
	}

	return caps, answer.GetStatus().GetPublishedNodeIds(), err
}

// getVolume calls ControllerGetVolume, if the driver has it.
func getVolume(
	ctx context.Context, co *csiclient.Client, caps csiclient.Capabilities, id string,
) (*csi.ControllerGetVolumeResponse, error) {
	if !caps.HasControllerRPC(csi.ControllerServiceCapability_RPC_GET_VOLUME) {
		return nil, nil //nolint:nilnil // a nil answer has the zero values
	}

	return co.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: id})
}

// attachment says how to undo a publish of which the driver reports no path, as a simulated node's, or nothing.
func attachment(ctx context.Context, co *csiclient.Client, known *health.VolumeReport) string {
	caps, _ := co.Capabilities(ctx)
	found, _ := getVolume(ctx, co, caps, known.ID) // without an answer that is not known

	nodes := found.GetStatus().GetPublishedNodeIds()
	if known.Staged != "" || len(nodes) == 0 {
		return ""
	}

	return fmt.Sprintf(" as far as the driver reports, but attached to %s; with the paths of its publish, "+
		"touchstone ctl volume unpublish %s --node %s --staging PATH --target PATH undoes that",
		strings.Join(nodes, ", "), cmp.Or(known.Name, known.ID), nodes[0])
}

func publishVerb() verb {
	var (
		claim csiclient.Publication
		use   capabilityFlags
	)

	return verb{
		name: "publish", arguments: []argument{oneVolume}, options: "--staging PATH --target PATH",
		short: "Publish a volume at a path: ControllerPublishVolume, NodeStageVolume, NodePublishVolume",
		long: `Publish a volume at a path: ControllerPublishVolume, NodeStageVolume and
NodePublishVolume, each if the driver advertises it. The volume's context comes
from ControllerGetVolume; on a socket without a controller, give it and the
controller's publish context with flags.`,
		required: []string{"target"},
		flags: func(flags *pflag.FlagSet) {
			flags.BoolVar(&claim.ReadOnly, "readonly", false, "publish read-only")
			flags.Var(keyValues(&claim.VolumeContext), "volume-context", "instead of ControllerGetVolume's (repeatable)")
			flags.Var(keyValues(&claim.PublishContext), "publish-context", "of a controller on another socket (repeatable)")
			definePublication(flags, &claim)
			use.register(flags)
		},
		run: func(ctx context.Context, s *session) (err error) {
			claim.VolumeID = s.args[0]

			if claim.Capability, err = use.capability(); err != nil {
				return err
			}

			return s.runSteps(ctx, &claim, s.PublishSteps)
		},
	}
}

func unpublishVerb() verb {
	var claim csiclient.Publication

	return verb{
		name: "unpublish", arguments: []argument{oneVolume}, options: "[--staging PATH --target PATH]", resolves: true,
		short: "Undo publish: NodeUnpublishVolume, NodeUnstageVolume, ControllerUnpublishVolume",
		long: `Undo publish: NodeUnpublishVolume, NodeUnstageVolume and ControllerUnpublishVolume. Paths
that are not given are those that the driver reports. Without --target a volume that is published
at several paths is refused, and one that is published elsewhere, too, is neither unstaged nor
detached.`,
		flags: func(flags *pflag.FlagSet) { definePublication(flags, &claim) },
		run: func(ctx context.Context, s *session) error {
			if claim.TargetPath == "" && claim.NodeID+claim.StagingPath != "" {
				return usage(errNoTarget)
			}

			// A volume that is deleted may still have to be unpublished.
			if err := s.resolve(ctx, names.Volume, &s.args[0]); err != nil && !errors.Is(err, errNoObject) {
				return err
			}

			if claim.TargetPath == "" {
				return s.umount(ctx, s.args[0])
			}

			claim.VolumeID = s.args[0]

			known, err := s.known(ctx, claim.VolumeID)
			if err != nil {
				return err
			}

			claim.StagingPath = cmp.Or(claim.StagingPath, known.Staged)

			return s.runSteps(ctx, &claim, s.UnpublishSteps)
		},
	}
}

// runSteps completes a publication, makes the calls of the list in order and prints those that
// succeeded, also if one fails: they have to be undone.
func (s *session) runSteps(
	ctx context.Context, claim *csiclient.Publication,
	list func(csiclient.Capabilities, *csiclient.Publication) ([]csiclient.Step, error),
) error {
	caps, _, err := completePublication(ctx, s.Client, claim)
	if err != nil {
		return err
	}

	steps, err := list(caps, claim)

	switch {
	case errors.Is(err, csiclient.ErrNoNodeService):
		return err
	case err != nil:
		return usage(fmt.Errorf("%w; the flags are --node, --staging and --target", err))
	}

	made, rows := []string{}, [][]string{{"CALL", "TOOK"}}

	for _, step := range steps {
		began := time.Now()

		if err = step.Call(ctx, claim); err != nil {
			break
		}

		made = append(made, step.RPC)
		rows = append(rows, []string{step.RPC, time.Since(began).Round(time.Microsecond).String()})
	}

	return s.show(err, answers{"calls": made, "publish_context": claim.PublishContext}, rows, claim.VolumeID)
}

package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/health"
)

var (
	errSmaller  = errors.New("a volume never shrinks")
	errNodePart = errors.New("the part of the node is not done")
	errNoPath   = errors.New("the volume is not in use on the node of this socket; name its path with --path")
)

// needed is a part of the node that is not done.
const needed = "needed"

// expansion is one `volume expand`.
type expansion struct {
	*session

	id              string
	required, limit int64
	path, staging   string
	use             capabilityFlags

	caps       csiclient.Capabilities
	known      health.VolumeReport
	capability *csi.VolumeCapability
	// nodes are those that the volume is attached to.
	nodes []string
	// answer is the controller's.
	answer *csi.ControllerExpandVolumeResponse
}

func expandVerb() verb {
	e := &expansion{}

	return verb{
		name: "expand", arguments: []argument{oneVolume}, options: "--size SIZE",
		short: "Grow a volume: ControllerExpandVolume, and NodeExpandVolume where it is in use",
		long: `Grow a volume and its filesystem: ControllerExpandVolume, and where the volume is in use
NodeExpandVolume, at the path that the driver reports, or --path of other drivers. On a
socket without a controller it is NodeExpandVolume alone. A volume that is not in use
grows its filesystem when it is staged. Exit code 1: something remains to be done, and
the command for it is printed. A smaller size is refused.`,
		required: []string{"size"},
		flags: func(flags *pflag.FlagSet) {
			flags.Var(size(&e.required), "size", "the new size, such as 2Gi")
			flags.Var(size(&e.limit), "limit", "at most this large")
			flags.StringVar(&e.path, "path", "", "where the volume is published or staged (default: what the driver reports)")
			flags.StringVar(&e.staging, "staging", "", "where it is staged")
			e.use.register(flags)
		},
		run: func(ctx context.Context, s *session) error {
			e.session, e.id = s, s.args[0]

			return e.run(ctx)
		},
	}
}

func (e *expansion) run(ctx context.Context) (err error) {
	if e.caps, err = e.Capabilities(ctx); err != nil {
		return err
	}

	if e.known, err = e.session.known(ctx, e.id); err != nil {
		return err
	}

	if err := e.checkGrows(ctx); err != nil {
		return err
	}

	if e.capability, err = e.use.capabilityFor(e.known); err != nil {
		return fmt.Errorf("%s: %w", e.names.of(e.id), err)
	}

	e.answer = &csi.ControllerExpandVolumeResponse{CapacityBytes: e.required, NodeExpansionRequired: true}
	parts := answers{}

	if e.caps.HasController {
		e.answer, err = e.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
			VolumeId: e.id, CapacityRange: &csi.CapacityRange{RequiredBytes: e.required, LimitBytes: e.limit}, VolumeCapability: e.capability,
		})
		if err != nil {
			return err
		}

		parts[controllerPart] = e.answer
	}

	grown, onNode, err := e.onNode(ctx)
	if grown != nil {
		parts[nodePart] = grown
	}

	name, capacity := e.names.of(e.id), formatBytes(e.answer.GetCapacityBytes())

	rows := [][]string{{"Volume:", name}, {"Capacity:", capacity}, {"Node's part:", onNode}}
	if err == nil {
		rows = titled("volume "+name+" has "+capacity+" now", rows)
	}

	return e.show(err, parts, rows, e.id)
}

// checkGrows refuses a size that is smaller than the volume's, where the driver says how large it is,
// and keeps the nodes that the volume is attached to.
func (e *expansion) checkGrows(ctx context.Context) error {
	found, err := getVolume(ctx, e.Client, e.caps, e.id)
	if err != nil {
		return err
	}

	e.nodes = found.GetStatus().GetPublishedNodeIds()

	capacity := cmp.Or(found.GetVolume().GetCapacityBytes(), e.known.CapacityBytes)
	if e.required < capacity {
		return fmt.Errorf("volume %s has %d bytes (%s), and --size is %d (%s): %w", e.id,
			capacity, formatBytes(capacity), e.required, formatBytes(e.required), errSmaller)
	}

	return nil
}

// onNode does the node's part of an expansion, and returns its answer, if there is one, and its state in
// words. The error has the command for what remains.
func (e *expansion) onNode(ctx context.Context) (*csi.NodeExpandVolumeResponse, string, error) {
	paths := append(slices.Clone(e.known.Published), e.known.Staged)
	if e.path != "" {
		paths = []string{e.path}
	}

	// Touchstone's image has grown then, and its node does not advertise the expansion.
	waits := e.known.Staged != "" && e.known.Backing.HasDevice() && !e.caps.HasNodeRPC(csi.NodeServiceCapability_RPC_EXPAND_VOLUME)

	switch {
	case !e.answer.GetNodeExpansionRequired() && waits:
		return nil, needed, e.remains("its node does not advertise EXPAND_VOLUME; " + stageAgain(e.known))
	case !e.answer.GetNodeExpansionRequired():
		return nil, "not needed", nil
	case paths[0] != "":
		grown, err := e.expandAt(ctx, paths)
		if err == nil {
			return grown, "done", nil
		}

		if status.Code(err) == codes.NotFound {
			e.path = "" // it is not there
		}

		remedy := "run " + e.command()
		if status.Code(err) == codes.FailedPrecondition && e.known.Staged != "" {
			remedy = stageAgain(e.known)
		}

		return nil, "failed", e.remains(fmt.Sprintf("%v; %s", err, remedy))
	case !e.caps.HasController:
		return nil, needed, fmt.Errorf("volume %s: %w", e.id, errNoPath)
	default:
		return e.elsewhere(ctx)
	}
}

// expandAt calls NodeExpandVolume at the first of the paths at which the volume still is.
func (e *expansion) expandAt(ctx context.Context, paths []string) (grown *csi.NodeExpandVolumeResponse, err error) {
	for _, path := range paths {
		grown, err = e.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
			VolumeId: e.id, VolumePath: path, StagingTargetPath: cmp.Or(e.staging, e.known.Staged),
			VolumeCapability: e.capability, CapacityRange: &csi.CapacityRange{RequiredBytes: e.answer.GetCapacityBytes()},
		})
		if status.Code(err) != codes.NotFound {
			break
		}
	}

	return grown, err
}

// elsewhere decides about a volume that is not in use here as far as the driver reports.
func (e *expansion) elsewhere(ctx context.Context) (*csi.NodeExpandVolumeResponse, string, error) {
	here := ""

	if e.caps.HasNode && e.known.ID != "" {
		info, err := e.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
		if err != nil {
			return nil, "unknown", err
		}

		here = info.GetNodeId()
	}

	others := slices.DeleteFunc(e.nodes, func(node string) bool { return node == here })

	switch {
	case len(others) > 0:
		return nil, needed, e.remains(fmt.Sprintf("on %s run %s", strings.Join(others, ", "), e.command()))
	case e.known.ID != "" && e.known.FSType == "":
		return nil, "not needed", nil
	case e.known.ID != "":
		return nil, "not in use: its filesystem grows when it is staged", nil
	default:
		return nil, needed, e.remains("where it is in use run " + e.command())
	}
}

func (e *expansion) remains(remedy string) error {
	return fmt.Errorf("volume %s has %d bytes, but %w: %s", e.id, e.answer.GetCapacityBytes(), errNodePart, remedy)
}

// command returns the command that does the part of the node.
func (e *expansion) command() string {
	command := fmt.Sprintf("touchstone ctl volume expand %s --size %d", e.id, e.answer.GetCapacityBytes())

	switch {
	case e.path != "":
		command += " --path " + e.path
	case e.known.ID == "":
		command += " --path PATH" // Only Touchstone reports it.
	}

	if e.use.block {
		command += " --block"
	}

	return command
}

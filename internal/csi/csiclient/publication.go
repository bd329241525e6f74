package csiclient

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// directoryMode is the mode of the directories that the CO makes, as the kubelet's.
const directoryMode = 0o750

// MountCapability returns the capability of a mounted volume. With an empty fsType the
// driver chooses the filesystem.
func MountCapability(mode csi.VolumeCapability_AccessMode_Mode, fsType string, flags ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{
			Mount: &csi.VolumeCapability_MountVolume{FsType: fsType, MountFlags: flags},
		},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
	}
}

// BlockCapability returns the capability of a raw block volume.
func BlockCapability(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
	}
}

// Publication is one volume at one target path on one node: the arguments that the calls
// from ControllerPublishVolume to NodePublishVolume and back have in common.
type Publication struct {
	VolumeID string
	// VolumeContext is CreateVolume's, unchanged.
	VolumeContext map[string]string
	// PublishContext is filled in by Attach.
	PublishContext map[string]string
	Capability     *csi.VolumeCapability
	NodeID         string
	// StagingPath is the directory for this volume on the node, TargetPath the path at
	// which the workload uses it. Both are absolute.
	StagingPath string
	TargetPath  string
	ReadOnly    bool
}

// Attach calls ControllerPublishVolume, which makes the volume available on the node,
// and keeps the publish context of its answer for the node's calls.
func (c *Client) Attach(ctx context.Context, p *Publication) error {
	answer, err := c.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
		VolumeId:         p.VolumeID,
		NodeId:           p.NodeID,
		VolumeCapability: p.Capability,
		VolumeContext:    p.VolumeContext,
		Readonly:         p.ReadOnly,
	})
	if err != nil {
		return err
	}

	p.PublishContext = answer.GetPublishContext()

	return nil
}

// Detach calls ControllerUnpublishVolume.
func (c *Client) Detach(ctx context.Context, p *Publication) error {
	_, err := c.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{
		VolumeId: p.VolumeID, NodeId: p.NodeID,
	})
	return err
}

// Stage calls NodeStageVolume, which prepares device and filesystem once per volume and
// node. It makes the staging directory, as the spec requires of the CO.
func (c *Client) Stage(ctx context.Context, p *Publication) error {
	if err := os.MkdirAll(p.StagingPath, directoryMode); err != nil {
		return fmt.Errorf("make the staging directory: %w", err)
	}

	_, err := c.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId:          p.VolumeID,
		PublishContext:    p.PublishContext,
		StagingTargetPath: p.StagingPath,
		VolumeCapability:  p.Capability,
		VolumeContext:     p.VolumeContext,
	})
	return err
}

// Unstage calls NodeUnstageVolume. The staging directory stays.
func (c *Client) Unstage(ctx context.Context, p *Publication) error {
	_, err := c.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{
		VolumeId: p.VolumeID, StagingTargetPath: p.StagingPath,
	})
	return err
}

// Publish calls NodePublishVolume, which mounts the volume at the target path, once per
// workload. It makes the parent of the target path; the driver makes the path itself.
func (c *Client) Publish(ctx context.Context, p *Publication) error {
	if err := os.MkdirAll(filepath.Dir(p.TargetPath), directoryMode); err != nil {
		return fmt.Errorf("make the parent of the target path: %w", err)
	}

	_, err := c.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId:          p.VolumeID,
		PublishContext:    p.PublishContext,
		StagingTargetPath: p.StagingPath,
		TargetPath:        p.TargetPath,
		VolumeCapability:  p.Capability,
		Readonly:          p.ReadOnly,
		VolumeContext:     p.VolumeContext,
	})
	return err
}

// Unpublish calls NodeUnpublishVolume. The driver removes the target path.
func (c *Client) Unpublish(ctx context.Context, p *Publication) error {
	_, err := c.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{
		VolumeId: p.VolumeID, TargetPath: p.TargetPath,
	})
	return err
}

// Step is one call for a publication.
type Step struct {
	// RPC is the name of the call in the spec.
	RPC  string
	Call func(ctx context.Context, p *Publication) error
}

// Errors of PublishSteps and UnpublishSteps: the publication lacks an argument that the
// driver's capabilities require.
var (
	ErrNodeIDRequired      = errors.New("the driver attaches volumes, so the node's id is needed")
	ErrStagingPathRequired = errors.New("the driver stages volumes, so a staging path is needed")
	ErrTargetPathRequired  = errors.New("a target path is needed")
	ErrNoNodeService       = errors.New("no node service answers on this socket")
)

// PublishSteps returns the calls that publish a volume at its target path, without those
// that the driver does not advertise.
func (c *Client) PublishSteps(caps Capabilities, p *Publication) ([]Step, error) {
	return p.steps(caps, Step{"ControllerPublishVolume", c.Attach}, Step{"NodeStageVolume", c.Stage}, Step{"NodePublishVolume", c.Publish})
}

// UnpublishSteps returns the calls that undo those of PublishSteps, in reverse order.
func (c *Client) UnpublishSteps(caps Capabilities, p *Publication) ([]Step, error) {
	steps, err := p.steps(caps,
		Step{"ControllerUnpublishVolume", c.Detach}, Step{"NodeUnstageVolume", c.Unstage}, Step{"NodeUnpublishVolume", c.Unpublish})
	slices.Reverse(steps)

	return steps, err
}

// steps returns those of the three calls that the driver advertises.
func (p *Publication) steps(caps Capabilities, attach, stage, publish Step) (steps []Step, err error) {
	attaches := caps.HasControllerRPC(csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
	stages := caps.HasNodeRPC(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)

	switch {
	case !caps.HasNode:
		return nil, ErrNoNodeService
	case attaches && p.NodeID == "":
		return nil, ErrNodeIDRequired
	case stages && p.StagingPath == "":
		return nil, ErrStagingPathRequired
	case p.TargetPath == "":
		return nil, ErrTargetPathRequired
	}

	if attaches {
		steps = append(steps, attach)
	}

	if stages {
		steps = append(steps, stage)
	}

	return append(steps, publish), nil
}

package csiclient

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// directoryMode is that of the directories which the CO makes: as the kubelet
// does, closed to others.
const directoryMode = 0o750

// Mount is the capability for a mounted volume. An empty fsType leaves the
// choice to the driver.
func Mount(mode csi.VolumeCapability_AccessMode_Mode, fsType string, flags ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{
			Mount: &csi.VolumeCapability_MountVolume{FsType: fsType, MountFlags: flags},
		},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
	}
}

// Block is the capability for a raw device.
func Block(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
	}
}

// Claim is one workload's use of one volume on one node: what the calls from
// ControllerPublishVolume to NodePublishVolume and back have in common.
type Claim struct {
	VolumeID string
	// VolumeContext is CreateVolume's, unchanged.
	VolumeContext map[string]string
	// PublishContext is filled in by Attach.
	PublishContext map[string]string
	Capability     *csi.VolumeCapability
	NodeID         string
	// StagingPath is the directory for this volume on the node, TargetPath the
	// place at which the workload finds it. Both are absolute.
	StagingPath string
	TargetPath  string
	ReadOnly    bool
}

// Attach is ControllerPublishVolume: the volume becomes reachable from the
// node. Its answer goes to the node by way of the claim.
func (o *Orchestrator) Attach(ctx context.Context, c *Claim) error {
	answer, err := o.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
		VolumeId:         c.VolumeID,
		NodeId:           c.NodeID,
		VolumeCapability: c.Capability,
		VolumeContext:    c.VolumeContext,
		Readonly:         c.ReadOnly,
	})
	if err != nil {
		return err
	}

	c.PublishContext = answer.GetPublishContext()

	return nil
}

// Detach is ControllerUnpublishVolume.
func (o *Orchestrator) Detach(ctx context.Context, c *Claim) error {
	if _, err := o.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{
		VolumeId: c.VolumeID,
		NodeId:   c.NodeID,
	}); err != nil {
		return err
	}

	return nil
}

// Stage is NodeStageVolume: once per volume and node, device and filesystem
// are made ready. The staging directory is the CO's to make.
func (o *Orchestrator) Stage(ctx context.Context, c *Claim) error {
	if err := os.MkdirAll(c.StagingPath, directoryMode); err != nil {
		return fmt.Errorf("make the staging directory: %w", err)
	}

	if _, err := o.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId:          c.VolumeID,
		PublishContext:    c.PublishContext,
		StagingTargetPath: c.StagingPath,
		VolumeCapability:  c.Capability,
		VolumeContext:     c.VolumeContext,
	}); err != nil {
		return err
	}

	return nil
}

// Unstage is NodeUnstageVolume. The staging directory stays.
func (o *Orchestrator) Unstage(ctx context.Context, c *Claim) error {
	if _, err := o.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{
		VolumeId:          c.VolumeID,
		StagingTargetPath: c.StagingPath,
	}); err != nil {
		return err
	}

	return nil
}

// Publish is NodePublishVolume: once per workload, the volume appears at the
// target path. The path itself is the driver's to make, its parent the CO's.
func (o *Orchestrator) Publish(ctx context.Context, c *Claim) error {
	if err := os.MkdirAll(filepath.Dir(c.TargetPath), directoryMode); err != nil {
		return fmt.Errorf("make the parent of the target path: %w", err)
	}

	if _, err := o.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId:          c.VolumeID,
		PublishContext:    c.PublishContext,
		StagingTargetPath: c.StagingPath,
		TargetPath:        c.TargetPath,
		VolumeCapability:  c.Capability,
		Readonly:          c.ReadOnly,
		VolumeContext:     c.VolumeContext,
	}); err != nil {
		return err
	}

	return nil
}

// Unpublish is NodeUnpublishVolume. The driver removes the target path.
func (o *Orchestrator) Unpublish(ctx context.Context, c *Claim) error {
	if _, err := o.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{
		VolumeId:   c.VolumeID,
		TargetPath: c.TargetPath,
	}); err != nil {
		return err
	}

	return nil
}

// Step is one call on a claim.
type Step struct {
	// RPC is the spec's name of the call.
	RPC  string
	Call func(ctx context.Context, c *Claim) error
}

// Errors of StepsUp and StepsDown: the claim lacks what the driver needs.
var (
	ErrNeedsNode    = errors.New("the driver attaches volumes, so the node's id is needed")
	ErrNeedsStaging = errors.New("the driver stages volumes, so a staging path is needed")
	ErrNeedsTarget  = errors.New("a target path is needed")
	ErrNoNode       = errors.New("no node service answers on this socket")
)

// StepsUp are the calls that bring a volume to its target path, leaving out
// what the driver does not advertise.
func (o *Orchestrator) StepsUp(caps Capabilities, c *Claim) ([]Step, error) {
	if err := c.check(caps); err != nil {
		return nil, err
	}

	var steps []Step
	if attaches(caps) {
		steps = append(steps, Step{"ControllerPublishVolume", o.Attach})
	}

	if stages(caps) {
		steps = append(steps, Step{"NodeStageVolume", o.Stage})
	}

	return append(steps, Step{"NodePublishVolume", o.Publish}), nil
}

// StepsDown are the calls that take it away again, in the reverse order.
func (o *Orchestrator) StepsDown(caps Capabilities, c *Claim) ([]Step, error) {
	if err := c.check(caps); err != nil {
		return nil, err
	}

	steps := []Step{{"NodeUnpublishVolume", o.Unpublish}}
	if stages(caps) {
		steps = append(steps, Step{"NodeUnstageVolume", o.Unstage})
	}

	if attaches(caps) {
		steps = append(steps, Step{"ControllerUnpublishVolume", o.Detach})
	}

	return steps, nil
}

func (c *Claim) check(caps Capabilities) error {
	switch {
	case !caps.HasNode:
		return ErrNoNode
	case attaches(caps) && c.NodeID == "":
		return ErrNeedsNode
	case stages(caps) && c.StagingPath == "":
		return ErrNeedsStaging
	case c.TargetPath == "":
		return ErrNeedsTarget
	default:
		return nil
	}
}

func attaches(caps Capabilities) bool {
	return caps.Controls(csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
}

func stages(caps Capabilities) bool {
	return caps.Nodes(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
}

package faults

import (
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/touchstone-csi/touchstone/internal/operation"
)

// Point is where a rule acts: at a point of every call, or at one of an operation.
type Point operation.Point

// The points of every call.
const (
	AtRequest  Point = "request"
	AtResponse Point = "response"
)

// PointInfo describes a point of an operation.
type PointInfo struct {
	Point Point
	// RPC is the call whose operation passes the point.
	RPC string
	// Done and Missing are what has happened and what has not.
	Done, Missing string
}

// The columns that several points share.
const (
	snapshots   = "CreateSnapshot, CreateVolumeGroupSnapshot"
	stages      = "NodeStageVolume"
	theResponse = "the response"
)

// pointInfos is the table of the points, in the order of a volume's lifecycle.
var pointInfos = []PointInfo{
	{Point(operation.VolumeAllocated), "CreateVolume", "its image or directory is made", "its record"},
	{Point(operation.VolumeRecorded), "CreateVolume", "the volume is recorded", theResponse},
	{Point(operation.AttachmentAllowed), "ControllerPublishVolume", "the image is durable", "the record of the attachment"},
	{Point(operation.AttachmentRecorded), "ControllerPublishVolume", "the attachment is recorded", theResponse},
	{Point(operation.StagingRecorded), stages, "the staging is recorded", "device and mount"},
	{Point(operation.ImageFormatted), stages, "a blank image has its filesystem", "device and mount"},
	{Point(operation.DeviceAttached), stages, "the loop device of a volume with a filesystem is attached", "the mount"},
	{Point(operation.VolumeStaged), stages, "the volume is mounted at the staging path", theResponse},
	{Point(operation.PublicationRecorded), "NodePublishVolume", "the publication is recorded", "the mount at the target path"},
	{Point(operation.VolumePublished), "NodePublishVolume", "the volume is mounted at the target path", theResponse},
	{Point(operation.ImageExpanded), "ControllerExpandVolume", "the image is larger", "the record of its size"},
	{Point(operation.SnapshotCopied), snapshots, "one copy is made; a group has a hit for each member", "its record as ready"},
	{Point(operation.SnapshotRecorded), snapshots, "the snapshot, or all of a group, are recorded as ready", theResponse},
	{Point(operation.VolumeUnstaged), "NodeUnstageVolume", "the volume is unmounted from the staging path", "the removal of its record"},
	{Point(operation.VolumeRemoved), "DeleteVolume", "the image or directory is removed", "the removal of its record"},
}

// Points returns the table of the points of operations.
func Points() []PointInfo { return append([]PointInfo(nil), pointInfos...) }

func (p Point) isOfCalls() bool { return p == "" || p == AtRequest || p == AtResponse }

// UnmarshalYAML implements yaml.Unmarshaler.
func (p *Point) UnmarshalYAML(node *yaml.Node) error {
	names := append(make([]string, 0, 2+len(pointInfos)), string(AtRequest), string(AtResponse))
	for _, each := range pointInfos {
		names = append(names, string(each.Point))
	}

	return oneOf(node, (*string)(p), names...)
}

// oneOf decodes a word of a list.
func oneOf(node *yaml.Node, into *string, words ...string) error {
	for _, word := range words {
		if node.Value == word {
			*into = word

			return nil
		}
	}

	return mistake(node, "%q is none of %s", node.Value, strings.Join(words, ", "))
}

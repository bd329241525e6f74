package controller

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

func TestUnsupportedCapabilitiesAreRefused(t *testing.T) {
	t.Parallel()

	const (
		single  = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
		readers = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
		writers = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	)

	advertised, err := capability.Without("SINGLE_NODE_MULTI_WRITER")
	require.NoError(t, err)

	image := volume.Parameters{Backing: volume.BackingImage, FSType: "ext4"}
	directory := volume.Parameters{Backing: volume.BackingDirectory}

	mounted := func(mode csi.VolumeCapability_AccessMode_Mode, flags ...string) *csi.VolumeCapability {
		return &csi.VolumeCapability{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{MountFlags: flags}},
		}
	}
	block := func(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
		return &csi.VolumeCapability{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
			AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		}
	}

	for name, test := range map[string]struct {
		shared     bool
		parameters volume.Parameters
		capability *csi.VolumeCapability
		refused    bool
	}{
		"image on one node":                     {false, image, mounted(single), false},
		"image as block":                        {false, image, block(single), false},
		"directory on one node":                 {false, directory, mounted(single), false},
		"directory as block":                    {false, directory, block(single), true},
		"several nodes without a shared pool":   {false, directory, mounted(writers), true},
		"directory on several nodes":            {true, directory, mounted(writers), false},
		"image read on several nodes":           {true, image, mounted(readers), false},
		"image written on several nodes":        {true, image, mounted(writers), true},
		"raw block written on several nodes":    {true, image, block(writers), true},
		"a mount flag":                          {false, image, mounted(single, "noatime"), false},
		"a mount flag that moves another mount": {false, image, mounted(single, "bind"), true},
		"no access type":                        {false, image, &csi.VolumeCapability{AccessMode: mounted(single).GetAccessMode()}, true},
		"no access mode":                        {false, image, mounted(csi.VolumeCapability_AccessMode_UNKNOWN), true},
		"a mode that is not advertised":         {false, image, mounted(csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := &parser{config: Config{Shared: test.shared, Capabilities: advertised}}

			_, err := s.parseCapabilities([]*csi.VolumeCapability{test.capability}, test.parameters)
			if test.refused {
				require.ErrorIs(t, err, volume.ErrCapability)

				return
			}

			require.NoError(t, err)
		})
	}
}

// TestAnotherVolumeOfThatNameIsAConflict compares an existing volume with a CreateVolumeRequest of its name.
func TestAnotherVolumeOfThatNameIsAConflict(t *testing.T) {
	t.Parallel()

	mount := volume.Capability{Mode: "SINGLE_NODE_WRITER"}
	existing := &record.Volume{
		ID: "id", CapacityBytes: 100,
		Properties: &record.Properties{
			Parameters:   volume.Parameters{Pool: "default", Backing: volume.BackingImage, FSType: "ext4"},
			Capabilities: []volume.Capability{mount}, Mutable: volume.Mutable{volume.KeyReadIOPS: "10"},
			Segments: record.NewSegments(map[string]string{"zone": "a"}),
		},
	}
	same := createRequest{
		asked: &csi.CapacityRange{RequiredBytes: 90, LimitBytes: 100}, parameters: existing.Parameters,
		capabilities: []volume.Capability{mount}, mutable: existing.Mutable,
	}

	for name, test := range map[string]struct {
		change func(r *createRequest)
		want   codes.Code
	}{
		"same":               {func(*createRequest) {}, codes.OK},
		"no size":            {func(r *createRequest) { r.asked = nil }, codes.OK},
		"the exact size":     {func(r *createRequest) { r.asked.RequiredBytes = 100 }, codes.OK},
		"a larger size":      {func(r *createRequest) { r.asked.RequiredBytes, r.asked.LimitBytes = 101, 0 }, codes.AlreadyExists},
		"a lower limit":      {func(r *createRequest) { r.asked.LimitBytes = 99 }, codes.AlreadyExists},
		"a source":           {func(r *createRequest) { r.source.VolumeID = "other" }, codes.AlreadyExists},
		"another pool":       {func(r *createRequest) { r.parameters.Pool = "fast" }, codes.AlreadyExists},
		"another filesystem": {func(r *createRequest) { r.parameters.FSType = "xfs" }, codes.AlreadyExists},
		"another capability": {func(r *createRequest) { r.capabilities = []volume.Capability{{Block: true, Mode: mount.Mode}} }, codes.AlreadyExists},
		"a capability twice": {func(r *createRequest) { r.capabilities = append(r.capabilities, mount) }, codes.OK},
		"one more capability": {func(r *createRequest) {
			r.capabilities = append(r.capabilities, volume.Capability{Block: true, Mode: mount.Mode})
		}, codes.AlreadyExists},
		"no mutable parameters":  {func(r *createRequest) { r.mutable = volume.Mutable{} }, codes.OK},
		"other mutable ones":     {func(r *createRequest) { r.mutable = volume.Mutable{volume.KeyReadIOPS: "11"} }, codes.AlreadyExists},
		"a topology that fits":   {func(r *createRequest) { r.topology = zone("a") }, codes.OK},
		"a topology without it":  {func(r *createRequest) { r.topology = zone("b") }, codes.AlreadyExists},
		"direct assignment also": {func(r *createRequest) { r.parameters.DirectAssign = true }, codes.AlreadyExists},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			wanted := same
			wanted.asked = &csi.CapacityRange{RequiredBytes: 90, LimitBytes: 100}
			wanted.capabilities = []volume.Capability{mount}
			test.change(&wanted)

			err := checkSameVolume(existing, &wanted)
			rpccode.Require(t, err, test.want)
		})
	}
}

func zone(value string) *csi.TopologyRequirement {
	return &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{"zone": value}}}}
}

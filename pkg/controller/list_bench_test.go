package controller_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/poolset"
)

// BenchmarkListVolumes lists 10 000 volumes, and encodes the answer, with the
// condition of each in it and without.
func BenchmarkListVolumes(b *testing.B) {
	for _, attached := range []bool{false, true} {
		directory := b.TempDir()
		provision(b, directory, attached)

		for _, off := range [][]string{{string(capability.VolumeCondition)}, nil} {
			b.Run(fmt.Sprintf("attached=%v/conditions=%v", attached, off == nil), func(b *testing.B) {
				served, end := open(b, directory, off...)
				defer end()

				require.NoError(b, served.Recover(b.Context()))
				// A list with conditions waits for the first one.
				require.NoError(b, served.Health().Monitor.Relist(b.Context()))
				b.ResetTimer()
				b.ReportAllocs()

				for b.Loop() {
					listed, err := served.ListVolumes(b.Context(), &csi.ListVolumesRequest{})
					if err != nil {
						b.Fatal(err)
					}

					if _, err := proto.Marshal(listed); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkRelist probes 10,000 idle volumes.
func BenchmarkRelist(b *testing.B) {
	directory := b.TempDir()
	provision(b, directory, false)

	served, end := open(b, directory)
	defer end()

	require.NoError(b, served.Recover(b.Context()))
	b.ResetTimer()
	b.ReportAllocs()

	for b.Loop() {
		require.NoError(b, served.Health().Monitor.Relist(b.Context()))
	}
}

const benchedVolumes = 10_000

func provision(b *testing.B, directory string, attached bool) {
	b.Helper()

	served, end := open(b, directory)
	defer end()

	require.NoError(b, served.Recover(b.Context()))

	creating, ctx := errgroup.WithContext(b.Context())
	creating.SetLimit(64)

	writer := &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}

	for i := range benchedVolumes {
		creating.Go(func() error {
			made, err := served.CreateVolume(ctx, &csi.CreateVolumeRequest{
				Name: fmt.Sprintf("volume %d", i), VolumeCapabilities: []*csi.VolumeCapability{writer},
				CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 20}, Parameters: map[string]string{"backing": "directory"},
			})
			if err != nil || !attached {
				return err
			}

			_, err = served.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
				VolumeId: made.GetVolume().GetVolumeId(), NodeId: "node", VolumeCapability: writer,
				VolumeContext: made.GetVolume().GetVolumeContext(),
			})

			return err
		})
	}

	require.NoError(b, creating.Wait())
}

// open returns a service whose state and pool are in the directory, and what gives
// them back.
func open(b *testing.B, directory string, off ...string) (served *controller.Service, end func()) {
	b.Helper()

	left, err := capability.Without(off...)
	require.NoError(b, err)

	pools, err := poolset.Open(map[string]string{"default": directory + "/pool"})
	require.NoError(b, err)

	log := slog.New(slog.DiscardHandler)
	store := state.New(directory+"/state", state.Options{Log: log})

	served, err = controller.New(controller.Config{
		NodeID: "node", Store: store, Pools: pools, Operations: operation.NewGroup(),
		Admission: &pool.Admission{Overcommit: 1}, Capabilities: left, Log: log,
	})
	require.NoError(b, err)
	require.NoError(b, store.Open(context.Background()))

	return served, func() {
		require.NoError(b, store.Close())
		require.NoError(b, pools.Close())
	}
}

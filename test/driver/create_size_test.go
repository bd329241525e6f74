package driver_test

import (
	"math"
	"os"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func TestSizes(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, func(c *driver.Config) { c.MaxVolumeBytes = 512 * mib })
	block := csiclient.BlockCapability(writer)
	xfs, btrfs, ext4 := csiclient.MountCapability(writer, "xfs"), csiclient.MountCapability(writer, "btrfs"), csiclient.MountCapability(writer, "ext4")

	for name, test := range map[string]struct {
		asked      *csi.CapacityRange
		capability *csi.VolumeCapability
		parameters map[string]string
		want       int64
		code       codes.Code
	}{
		"none asked, the default is more than the limit": {capability: block, want: 512 * mib},
		"rounded up":                       {asked: required(4097), capability: block, want: 8192},
		"exact":                            {asked: required(8192), capability: block, want: 8192},
		"one byte":                         {asked: required(1), capability: block, want: 4096},
		"rounded up to the limit":          {asked: between(5000, 8192), capability: block, want: 8192},
		"rounded above the limit":          {asked: between(5000, 8191), capability: block, code: codes.OutOfRange},
		"required and limit alike and odd": {asked: between(5000, 5000), capability: block, code: codes.OutOfRange},
		"limit only":                       {asked: upTo(10000), capability: block, want: 8192},
		"limit only, below all":            {asked: upTo(4095), capability: block, code: codes.OutOfRange},
		"limit below required":             {asked: between(8192, 4096), capability: block, code: codes.InvalidArgument},
		"negative required":                {asked: required(-1), capability: block, code: codes.InvalidArgument},
		"negative limit":                   {asked: between(1, -1), capability: block, code: codes.InvalidArgument},
		"smallest of all numbers":          {asked: required(math.MinInt64), capability: block, code: codes.InvalidArgument},
		"the largest volume":               {asked: required(512 * mib), capability: block, want: 512 * mib},
		"more than --max-volume-size":      {asked: required(512*mib + 1), capability: block, code: codes.OutOfRange},
		"overflows when rounded":           {asked: required(math.MaxInt64), capability: block, code: codes.OutOfRange},
		"just below that":                  {asked: required(math.MaxInt64 - 4095), capability: block, code: codes.OutOfRange},
		"ext4 has a minimum":               {asked: required(1), capability: ext4, want: 256 << 10},
		"xfs has one":                      {asked: required(mib), capability: xfs, want: 300 * mib},
		"so has btrfs":                     {asked: required(mib), capability: btrfs, want: 256 * mib},
		"xfs below its limit":              {asked: between(mib, 300*mib-1), capability: xfs, code: codes.OutOfRange},
		"a directory has no filesystem": {
			asked: required(1), capability: csiclient.MountCapability(writer, ""), want: 4096,
			parameters: directoryBacked(),
		},
		"fstype by parameter": {
			asked: required(1), capability: csiclient.MountCapability(writer, ""), want: 300 * mib,
			parameters: map[string]string{"csi.storage.k8s.io/fstype": "xfs"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			made, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
				Name: nameOf(t), CapacityRange: test.asked, Parameters: test.parameters,
				VolumeCapabilities: []*csi.VolumeCapability{test.capability},
			})
			fails(t, err, test.code)

			if test.code != codes.OK {
				return
			}

			require.Equal(t, test.want, made.GetVolume().GetCapacityBytes())

			if test.parameters["backing"] != "directory" {
				info, err := os.Stat(imageOf(d, made.GetVolume().GetVolumeId()))
				require.NoError(t, err)
				require.Equal(t, test.want, info.Size())
			}

			if test.capability.GetMount() == nil {
				return
			}

			// The smallest size is one that really holds the filesystem.
			claim := d.Claim(t, made.GetVolume().GetVolumeId())
			claim.Capability, claim.VolumeContext = test.capability, made.GetVolume().GetVolumeContext()
			bringUp(t, d, claim)
			takeDown(t, d, claim)
		})
	}
}

func required(bytes int64) *csi.CapacityRange { return &csi.CapacityRange{RequiredBytes: bytes} }

func between(required, limit int64) *csi.CapacityRange {
	return &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}
}

func TestExpansionSizes(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, func(c *driver.Config) { c.MaxVolumeBytes = 512 * mib })
	claim := newVolume(t, d, &csi.CreateVolumeRequest{CapacityRange: required(64 * mib)})

	for _, test := range []struct {
		name  string
		asked *csi.CapacityRange
		want  int64
		code  codes.Code
	}{
		{"an empty range", &csi.CapacityRange{}, 0, codes.InvalidArgument},
		{"negative", required(-1), 0, codes.InvalidArgument},
		{"limit below required", between(8192, 4096), 0, codes.InvalidArgument},
		{"a smaller one is what it has already", required(mib), 64 * mib, codes.OK},
		{"a limit that it keeps", upTo(100 * mib), 64 * mib, codes.OK},
		{"never shrinks", between(mib, 32*mib), 0, codes.OutOfRange},
		{"not by a limit alone", upTo(32 * mib), 0, codes.OutOfRange},
		{"rounded up", required(64*mib + 1), 64*mib + 4096, codes.OK},
		{"rounded above the limit", between(65*mib+1, 65*mib+2), 0, codes.OutOfRange},
		{"more than --max-volume-size", required(513 * mib), 0, codes.OutOfRange},
		{"overflow", required(math.MaxInt64), 0, codes.OutOfRange},
		{"again", required(64*mib + 1), 64*mib + 4096, codes.OK},
	} {
		answer, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: claim.VolumeID, CapacityRange: test.asked,
		})
		require.Equal(t, test.code.String(), status.Code(err).String(), "%s: %v", test.name, err)
		require.Equal(t, test.want, answer.GetCapacityBytes(), test.name)
	}

	info, err := os.Stat(imageOf(d, claim.VolumeID))
	require.NoError(t, err)
	require.EqualValues(t, 64*mib+4096, info.Size())
}

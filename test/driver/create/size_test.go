package create_test

import (
	"math"
	"os"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

func TestSizesAreRoundedUpWithinTheirLimits(t *testing.T) {
	t.Parallel()

	d := harness.Start(t, func(c *driver.Config) { c.MaxVolumeBytes = 512 * harness.MiB })
	block := csiclient.BlockCapability(harness.Writer)
	xfs, btrfs, ext4 := csiclient.MountCapability(harness.Writer, "xfs"), csiclient.MountCapability(harness.Writer, "btrfs"), csiclient.MountCapability(harness.Writer, "ext4")

	for name, test := range map[string]struct {
		asked      *csi.CapacityRange
		capability *csi.VolumeCapability
		parameters map[string]string
		want       int64
		code       codes.Code
	}{
		"none asked, the default is more than the limit": {capability: block, want: 512 * harness.MiB},
		"rounded up":                       {asked: harness.RequiredBytes(4097), capability: block, want: 8192},
		"exact":                            {asked: harness.RequiredBytes(8192), capability: block, want: 8192},
		"one byte":                         {asked: harness.RequiredBytes(1), capability: block, want: 4096},
		"rounded up to the limit":          {asked: harness.Between(5000, 8192), capability: block, want: 8192},
		"rounded above the limit":          {asked: harness.Between(5000, 8191), capability: block, code: codes.OutOfRange},
		"required and limit alike and odd": {asked: harness.Between(5000, 5000), capability: block, code: codes.OutOfRange},
		"limit only":                       {asked: harness.UpTo(10000), capability: block, want: 8192},
		"limit only, below all":            {asked: harness.UpTo(4095), capability: block, code: codes.OutOfRange},
		"limit below required":             {asked: harness.Between(8192, 4096), capability: block, code: codes.InvalidArgument},
		"negative required":                {asked: harness.RequiredBytes(-1), capability: block, code: codes.InvalidArgument},
		"negative limit":                   {asked: harness.Between(1, -1), capability: block, code: codes.InvalidArgument},
		"smallest of all numbers":          {asked: harness.RequiredBytes(math.MinInt64), capability: block, code: codes.InvalidArgument},
		"the largest volume":               {asked: harness.RequiredBytes(512 * harness.MiB), capability: block, want: 512 * harness.MiB},
		"more than --max-volume-size":      {asked: harness.RequiredBytes(512*harness.MiB + 1), capability: block, code: codes.OutOfRange},
		"overflows when rounded":           {asked: harness.RequiredBytes(math.MaxInt64), capability: block, code: codes.OutOfRange},
		"just below that":                  {asked: harness.RequiredBytes(math.MaxInt64 - 4095), capability: block, code: codes.OutOfRange},
		"ext4 has a minimum":               {asked: harness.RequiredBytes(1), capability: ext4, want: 256 << 10},
		"xfs has one":                      {asked: harness.RequiredBytes(harness.MiB), capability: xfs, want: 300 * harness.MiB},
		"so has btrfs":                     {asked: harness.RequiredBytes(harness.MiB), capability: btrfs, want: 256 * harness.MiB},
		"xfs below its limit":              {asked: harness.Between(harness.MiB, 300*harness.MiB-1), capability: xfs, code: codes.OutOfRange},
		"a directory has no filesystem": {
			asked: harness.RequiredBytes(1), capability: csiclient.MountCapability(harness.Writer, ""), want: 4096,
			parameters: harness.DirectoryBacked(),
		},
		"fstype by parameter": {
			asked: harness.RequiredBytes(1), capability: csiclient.MountCapability(harness.Writer, ""), want: 300 * harness.MiB,
			parameters: map[string]string{"csi.storage.k8s.io/fstype": "xfs"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			made, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
				Name: harness.NameOf(t), CapacityRange: test.asked, Parameters: test.parameters,
				VolumeCapabilities: []*csi.VolumeCapability{test.capability},
			})
			harness.RequireCode(t, err, test.code)

			if test.code != codes.OK {
				return
			}

			require.Equal(t, test.want, made.GetVolume().GetCapacityBytes(), "want: the volume has the rounded size")

			if test.parameters["backing"] != "directory" {
				info, err := os.Stat(harness.ImageOf(d, made.GetVolume().GetVolumeId()))
				require.NoError(t, err)
				require.Equal(t, test.want, info.Size(), "want: the image has the rounded size")
			}

			if test.capability.GetMount() == nil {
				return
			}

			// The smallest size is one that really holds the filesystem.
			claim := d.Claim(t, made.GetVolume().GetVolumeId())
			claim.Capability, claim.VolumeContext = test.capability, made.GetVolume().GetVolumeContext()
			harness.BringUp(t, d, claim)
			harness.TakeDown(t, d, claim)
		})
	}
}

func TestExpansionsAreRoundedUpWithinTheirLimits(t *testing.T) {
	t.Parallel()

	d := harness.Start(t, func(c *driver.Config) { c.MaxVolumeBytes = 512 * harness.MiB })
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{CapacityRange: harness.RequiredBytes(64 * harness.MiB)})

	for _, test := range []struct {
		name  string
		asked *csi.CapacityRange
		want  int64
		code  codes.Code
	}{
		{"an empty range", &csi.CapacityRange{}, 0, codes.InvalidArgument},
		{"negative", harness.RequiredBytes(-1), 0, codes.InvalidArgument},
		{"limit below required", harness.Between(8192, 4096), 0, codes.InvalidArgument},
		{"a smaller one is what it has already", harness.RequiredBytes(harness.MiB), 64 * harness.MiB, codes.OK},
		{"a limit that it keeps", harness.UpTo(100 * harness.MiB), 64 * harness.MiB, codes.OK},
		{"never shrinks", harness.Between(harness.MiB, 32*harness.MiB), 0, codes.OutOfRange},
		{"not by a limit alone", harness.UpTo(32 * harness.MiB), 0, codes.OutOfRange},
		{"rounded up", harness.RequiredBytes(64*harness.MiB + 1), 64*harness.MiB + 4096, codes.OK},
		{"rounded above the limit", harness.Between(65*harness.MiB+1, 65*harness.MiB+2), 0, codes.OutOfRange},
		{"more than --max-volume-size", harness.RequiredBytes(513 * harness.MiB), 0, codes.OutOfRange},
		{"overflow", harness.RequiredBytes(math.MaxInt64), 0, codes.OutOfRange},
		{"again", harness.RequiredBytes(64*harness.MiB + 1), 64*harness.MiB + 4096, codes.OK},
	} {
		answer, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: claim.VolumeID, CapacityRange: test.asked,
		})
		rpccode.Require(t, err, test.code, "%s", test.name)
		require.Equal(t, test.want, answer.GetCapacityBytes(), test.name)
	}

	info, err := os.Stat(harness.ImageOf(d, claim.VolumeID))
	require.NoError(t, err)
	require.EqualValues(t, 64*harness.MiB+4096, info.Size(), "want: the image has the rounded size")
}

package direct_test

import (
	"maps"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/harness"
)

// aDirectVolume is the smallest request that asks for one, with or without the
// parameters.
func aDirectVolume(name string, parameters map[string]string) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name: name, Parameters: parameters, CapacityRange: harness.RequiredBytes(16 * harness.MiB),
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.SingleWriter, "")},
	}
}

// notDirect are the capabilities that a direct volume can't have.
func notDirect() map[string]*csi.VolumeCapability {
	return map[string]*csi.VolumeCapability{
		"block":                  csiclient.BlockCapability(harness.SingleWriter),
		"several writers":        csiclient.MountCapability(harness.MultiWriter, ""),
		"several nodes read":     csiclient.MountCapability(harness.NodesRead, ""),
		"one of several nodes":   csiclient.MountCapability(harness.NodesOne, ""),
		"several nodes write":    csiclient.MountCapability(harness.NodesWrite, ""),
		"block, several writers": csiclient.BlockCapability(harness.MultiWriter),
	}
}

func TestTheDirectParameterAsksForAnAssignment(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)

	for name, test := range map[string]struct {
		parameters map[string]string
		code       codes.Code
		want       bool
		words      []string
	}{
		"not asked":       {nil, codes.OK, false, nil},
		"true":            {harness.DirectParameters(), codes.OK, true, nil},
		"false":           {map[string]string{harness.DirectKey: "false"}, codes.OK, false, nil},
		"alias":           {map[string]string{"skip-hostmount": "true"}, codes.OK, true, nil},
		"both":            {map[string]string{harness.DirectKey: "true", "skip-hostmount": "true"}, codes.OK, true, nil},
		"contradiction":   {map[string]string{harness.DirectKey: "true", "skip-hostmount": "false"}, codes.InvalidArgument, false, []string{"contradict"}},
		"another value":   {map[string]string{harness.DirectKey: "yes"}, codes.InvalidArgument, false, []string{harness.DirectKey, "true or false"}},
		"no value":        {map[string]string{"skip-hostmount": ""}, codes.InvalidArgument, false, []string{"skip-hostmount", "true or false"}},
		"a directory":     {map[string]string{harness.DirectKey: "true", "backing": "directory"}, codes.InvalidArgument, false, []string{"backing=image"}},
		"an ordinary one": {map[string]string{harness.DirectKey: "false", "backing": "directory"}, codes.OK, false, nil},
		"thick, 512, options": {map[string]string{
			harness.DirectKey: "true", "provisioning": "thick", "blockSize": "512", "mkfsOptions": "-m 1",
		}, codes.OK, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			before := harness.Everything(t, d)

			made, err := d.CreateVolume(t.Context(), aDirectVolume(harness.NameOf(t), test.parameters))
			harness.RequireCode(t, err, test.code, test.words...)

			if test.code != codes.OK {
				require.Equal(t, before, harness.Everything(t, d))

				return
			}

			value, reported := made.GetVolume().GetVolumeContext()[harness.DirectKey]
			require.Equal(t, test.want, reported, "want: the volume context has directAssign only if it is set")
			require.Equal(t, test.want, value == "true", "want: the volume context has directAssign as true")
			require.NotContains(t, made.GetVolume().GetVolumeContext(), "skip-hostmount")
		})
	}
}

// TestDirectVolumeIsNotShared: each call of the controller is asked for what only an ordinary
// volume can do.
func TestDirectVolumeIsNotShared(t *testing.T) {
	t.Parallel()

	// With a pool that several nodes reach, no mode is refused for another reason.
	d := harness.Start(t, harness.SharedPool)
	claim := harness.NewVolume(t, d, aDirectVolume("one", harness.DirectParameters()))

	for name, capability := range notDirect() {
		t.Run(name, func(t *testing.T) {
			words := []string{harness.DirectKey}
			if capability.GetMount() != nil {
				words = append(words, capability.GetAccessMode().GetMode().String(), "ReadWriteOncePod")
			}

			before := harness.Everything(t, d)
			request := aDirectVolume(harness.NameOf(t), harness.DirectParameters())
			request.VolumeCapabilities = append(request.VolumeCapabilities, capability)
			_, err := d.CreateVolume(t.Context(), request)
			harness.RequireCode(t, err, codes.InvalidArgument, append(words, "volume_capabilities")...)

			answer, err := d.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{
				VolumeId: claim.VolumeID, VolumeCapabilities: []*csi.VolumeCapability{capability},
			})
			require.NoError(t, err)
			require.Nil(t, answer.GetConfirmed(), "ValidateVolumeCapabilities confirms what the volume has not: %s", answer.GetMessage())

			// The spec limits the message to 128 bytes.
			for _, word := range words[:min(len(words), 2)] {
				require.Contains(t, answer.GetMessage(), word)
			}

			wanted := *claim
			wanted.Capability = capability
			harness.RequireCode(t, d.Attach(t.Context(), &wanted), codes.InvalidArgument, append(words, "volume_capability")...)

			_, err = d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
				VolumeId: claim.VolumeID, CapacityRange: harness.RequiredBytes(32 * harness.MiB), VolumeCapability: capability,
			})
			harness.RequireCode(t, err, codes.InvalidArgument, words...)
			require.Equal(t, before, harness.Everything(t, d))
		})
	}

	for _, mode := range []csi.VolumeCapability_AccessMode_Mode{harness.Writer, harness.SingleWriter, harness.ReaderOnly} {
		wanted := *claim
		wanted.Capability = csiclient.MountCapability(mode, "")

		answer, err := d.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{
			VolumeId: claim.VolumeID, VolumeCapabilities: []*csi.VolumeCapability{wanted.Capability},
			VolumeContext: claim.VolumeContext, Parameters: harness.DirectParameters(),
		})
		require.NoError(t, err)
		require.NotNil(t, answer.GetConfirmed(), "%s: %s", mode, answer.GetMessage())

		require.NoError(t, d.Attach(t.Context(), &wanted), mode)
		require.NoError(t, d.Detach(t.Context(), &wanted), mode)
	}
}

func TestDirectAssignmentIsFixedAtCreation(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	ordinary, assigned := harness.NewVolume(t, d, aDirectVolume("ordinary", nil)), harness.NewVolume(t, d, aDirectVolume("direct", harness.DirectParameters()))

	check := func() {
		for _, test := range []struct {
			name       string
			parameters map[string]string
			want       codes.Code
			claim      *csiclient.Publication
		}{
			{"direct", harness.DirectParameters(), codes.OK, assigned},
			{"direct", map[string]string{"skip-hostmount": "true"}, codes.OK, assigned},
			{"direct", nil, codes.AlreadyExists, assigned},
			{"direct", map[string]string{harness.DirectKey: "false"}, codes.AlreadyExists, assigned},
			{"ordinary", nil, codes.OK, ordinary},
			{"ordinary", map[string]string{"skip-hostmount": "false"}, codes.OK, ordinary},
			{"ordinary", harness.DirectParameters(), codes.AlreadyExists, ordinary},
		} {
			again, err := d.CreateVolume(t.Context(), aDirectVolume(test.name, test.parameters))
			harness.RequireCode(t, err, test.want)

			if test.want == codes.OK {
				require.Equal(t, test.claim.VolumeID, again.GetVolume().GetVolumeId())
				require.Equal(t, test.claim.VolumeContext, again.GetVolume().GetVolumeContext())
			}

			if len(test.parameters) > 0 {
				require.Equal(t, test.want == codes.OK, confirms(t, d, test.claim.VolumeID, test.parameters), "%v", test)
			}
		}

		require.Len(t, harness.ListAll(t, d), 2, "want: both volumes are listed")
	}

	check()
	d.Restart(t)
	check()

	for _, claim := range []*csiclient.Publication{ordinary, assigned} {
		other := maps.Clone(claim.VolumeContext)
		if _, was := other[harness.DirectKey]; was {
			delete(other, harness.DirectKey)
		} else {
			other[harness.DirectKey] = "true"
		}

		answer, err := d.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{
			VolumeId: claim.VolumeID, VolumeCapabilities: []*csi.VolumeCapability{claim.Capability}, VolumeContext: other,
		})
		require.NoError(t, err)
		require.Nil(t, answer.GetConfirmed(), "ValidateVolumeCapabilities confirms what the volume has not: %s", answer.GetMessage())
	}
}

// confirms says whether the volume was made with the parameters.
func confirms(t *testing.T, d *harness.Driver, id string, parameters map[string]string) bool {
	t.Helper()

	answer, err := d.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{
		VolumeId: id, Parameters: parameters, VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.SingleWriter, "")},
	})
	require.NoError(t, err)

	return answer.GetConfirmed() != nil
}

// TestDirectVolumesAreCopiedAsImages: what is made of a volume has what its own
// request says.
func TestDirectVolumesAreCopiedAsImages(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)

	for name, parameters := range map[string]map[string]string{"ordinary": nil, "direct": harness.DirectParameters()} {
		source := harness.NewVolume(t, d, aDirectVolume(name, parameters))
		snapshot, err := d.CreateSnapshotAndWait(t.Context(), &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: source.VolumeID})
		require.NoError(t, err)

		for copied, wanted := range map[string]map[string]string{"ordinary": nil, "direct": harness.DirectParameters()} {
			for kind, content := range map[string]*csi.VolumeContentSource{
				"clone": harness.FromVolume(source.VolumeID), "restore": harness.FromSnapshot(snapshot.GetSnapshot().GetSnapshotId()),
			} {
				request := aDirectVolume(name+"-"+copied+"-"+kind, wanted)
				request.VolumeContentSource = content

				made := harness.NewVolume(t, d, request)
				require.Equal(t, wanted[harness.DirectKey], made.VolumeContext[harness.DirectKey])
				require.Equal(t, made.VolumeID, harness.NewVolume(t, d, request).VolumeID)
			}
		}
	}
}

func TestInlineVolumeIsNotDirect(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)

	for _, key := range []string{harness.DirectKey, "skip-hostmount"} {
		claim := harness.InlineClaim(t, d, map[string]string{key: "true", "size": "16Mi"})
		harness.RequireCode(t, d.Publish(t.Context(), claim), codes.InvalidArgument, harness.DirectKey, "use a claim")
		require.NoFileExists(t, claim.TargetPath)
		require.Empty(t, harness.EphemeralObjects(t, d), "want: nothing is left of the refused inline volume")
	}
}

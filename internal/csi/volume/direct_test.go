package volume_test

import (
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

func TestDirectAssignAndItsAliasAreParsed(t *testing.T) {
	t.Parallel()

	type given = map[string]string

	for name, test := range map[string]struct {
		given given
		want  bool
		words []string
	}{
		"not asked":           {given{}, false, nil},
		"true":                {given{"directAssign": "true"}, true, nil},
		"false":               {given{"directAssign": "false"}, false, nil},
		"alias":               {given{"skip-hostmount": "true"}, true, nil},
		"alias, false":        {given{"skip-hostmount": "false"}, false, nil},
		"both say yes":        {given{"directAssign": "true", "skip-hostmount": "true"}, true, nil},
		"both say no":         {given{"directAssign": "false", "skip-hostmount": "false"}, false, nil},
		"yes and no":          {given{"directAssign": "true", "skip-hostmount": "false"}, false, []string{"directAssign", "skip-hostmount", "contradict"}},
		"no and yes":          {given{"directAssign": "false", "skip-hostmount": "true"}, false, []string{"directAssign", "skip-hostmount", "contradict"}},
		"True":                {given{"directAssign": "True"}, false, []string{"directAssign", `"True"`, "true or false"}},
		"1":                   {given{"directAssign": "1"}, false, []string{"directAssign", "true or false"}},
		"empty":               {given{"directAssign": ""}, false, []string{"directAssign", "true or false"}},
		"blank":               {given{"directAssign": "true "}, false, []string{"directAssign", "true or false"}},
		"alias: yes":          {given{"skip-hostmount": "yes"}, false, []string{"skip-hostmount", "true or false"}},
		"a directory":         {given{"directAssign": "true", "backing": "directory"}, false, []string{"directAssign", "backing=image"}},
		"a directory, alias":  {given{"skip-hostmount": "true", "backing": "directory"}, false, []string{"backing=image"}},
		"a directory, not so": {given{"directAssign": "false", "backing": "directory"}, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			parsed, err := volume.ParseParameters(test.given)
			fromContext, contextErr := volume.ParseContext(test.given)

			if test.words != nil {
				require.ErrorIs(t, err, volume.ErrParameter)
				require.ErrorIs(t, contextErr, volume.ErrParameter)

				for _, word := range test.words {
					errtext.Require(t, err, word)
				}

				return
			}

			require.NoError(t, err)
			require.NoError(t, contextErr)
			require.Equal(t, test.want, parsed.DirectAssign, "want: directAssign is parsed as written")
			require.Equal(t, parsed, fromContext)

			// The alias is not handed on.
			value, told := parsed.Context()["directAssign"]
			require.Equal(t, test.want, told, "want: the volume context has directAssign only if it is set")
			require.Equal(t, test.want, value == "true", "want: the volume context has directAssign as true")
			require.NotContains(t, parsed.Context(), "skip-hostmount")

			again, err := volume.ParseContext(parsed.Context())
			require.NoError(t, err)
			require.Equal(t, parsed, again)
		})
	}
}

func TestInlineVolumesAreNotAssignedDirectly(t *testing.T) {
	t.Parallel()

	for _, key := range []string{"directAssign", "skip-hostmount"} {
		_, _, err := volume.ParseEphemeral(map[string]string{key: "true", "size": "64Mi"})
		require.ErrorIs(t, err, volume.ErrParameter)
		errtext.Require(t, err, "use a claim")

		parameters, size, err := volume.ParseEphemeral(map[string]string{key: "false", "size": "64Mi"})
		require.NoError(t, err)
		require.False(t, parameters.DirectAssign, "want: the volume is not assigned directly")
		require.EqualValues(t, 64<<20, size, "want: the size is parsed")
	}
}

func TestDirectVolumesAreForOneNodeAtATime(t *testing.T) {
	t.Parallel()

	ordinary, err := volume.ParseParameters(nil)
	require.NoError(t, err)

	direct, err := ordinary.WithDirectAssign()
	require.NoError(t, err)
	require.False(t, ordinary.DirectAssign, "want: the volume is not assigned directly")

	allowed := []volume.Mode{
		csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
	}

	for number, name := range csi.VolumeCapability_AccessMode_Mode_name {
		for _, block := range []bool{false, true} {
			wanted := volume.Capability{Block: block, Mode: name}
			require.NoError(t, ordinary.CheckDirectAssign(wanted), name)

			err := direct.CheckDirectAssign(wanted)

			switch {
			case block:
				require.ErrorIs(t, err, volume.ErrCapability, name)
				errtext.Require(t, err, "block access")
			case slices.Contains(allowed, volume.Mode(number)):
				require.NoError(t, err, name)
			default:
				require.ErrorIs(t, err, volume.ErrCapability, name)
				errtext.Require(t, err, name)
				errtext.Require(t, err, "ReadWriteOncePod")
			}
		}
	}
}

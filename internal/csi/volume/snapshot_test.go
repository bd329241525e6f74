package volume_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

func TestTheConsistencyOfACloneIsNoProperty(t *testing.T) {
	t.Parallel()

	plain, err := volume.ParseParameters(nil)
	require.NoError(t, err)
	require.Equal(t, volume.ConsistencyFilesystem, volume.CloneConsistency(nil))

	for _, value := range []volume.Consistency{volume.ConsistencyFilesystem, volume.ConsistencyNone} {
		given := map[string]string{"consistency": string(value)}

		parsed, err := volume.ParseParameters(given)
		require.NoError(t, err)
		require.Equal(t, plain, parsed, "it is no property of the volume")
		require.Equal(t, value, volume.CloneConsistency(given))

		_, _, err = volume.ParseEphemeral(given)
		require.ErrorIs(t, err, volume.ErrParameter)
		errtext.Require(t, err, "consistency")
	}

	_, err = volume.ParseParameters(map[string]string{"consistency": "best"})
	require.ErrorIs(t, err, volume.ErrParameter)
	errtext.Require(t, err, "filesystem or none")
}

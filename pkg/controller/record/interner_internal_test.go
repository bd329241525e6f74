package record

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// TestSharingChangesNothing lets records of every kind share, twice, and
// compares them with what was read.
func TestSharingChangesNothing(t *testing.T) {
	t.Parallel()

	var common Interner

	for _, capabilities := range [][]volume.Capability{
		nil,
		{{Block: true, Mode: "SINGLE_NODE_WRITER"}},
		{{FSType: "ext4", Mode: "SINGLE_NODE_WRITER"}},
		{{FSType: "xfs", Mode: "SINGLE_NODE_WRITER"}},
		{{FSType: "ext4", Mode: "MULTI_NODE_READER_ONLY"}},
		{{FSType: "ext4", Mode: "SINGLE_NODE_WRITER", MountFlags: []string{"noatime"}}},
		{{FSType: "ext4", Mode: "SINGLE_NODE_WRITER", MountGroup: "1000"}},
		{{FSType: "unheard of", Mode: "SINGLE_NODE_WRITER"}},
		{{Block: true, Mode: "SINGLE_NODE_WRITER"}, {FSType: "ext4", Mode: "SINGLE_NODE_WRITER"}},
	} {
		for _, pool := range []string{"default", "fast"} {
			before := Volume{
				ID: "id", Name: "name", Capabilities: capabilities, Phase: PhaseReady,
				Parameters: volume.Parameters{Pool: pool, Backing: volume.BackingImage, BlockSize: volume.DefaultBlockSize},
			}
			text, err := json.Marshal(before)
			require.NoError(t, err)

			for range 2 {
				var after Volume

				require.NoError(t, json.Unmarshal(text, &after))
				common.Intern(&after)
				require.Equal(t, before, after, fmt.Sprint(capabilities))
			}
		}
	}
}

// TestSharingSharesMemory compares addresses, which no caller can.
func TestSharingSharesMemory(t *testing.T) {
	t.Parallel()

	var (
		common Interner
		lists  [2][]volume.Capability
	)

	for i := range lists {
		v := &Volume{Capabilities: []volume.Capability{{FSType: "ext4", Mode: "SINGLE_NODE_WRITER"}}}
		common.Intern(v)

		lists[i] = v.Capabilities
	}

	require.Same(t, &lists[0][0], &lists[1][0])
}

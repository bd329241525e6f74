package staged_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// TestFailedChangeKeepsTheMemory if the store accepts no change: the records in memory stay as they
// are on disk.
func TestFailedChangeKeepsTheMemory(t *testing.T) {
	t.Parallel()

	const other = "01890000-0000-7000-8000-000000000002"

	records, closeStore := open(t, t.TempDir())
	require.NoError(t, records.Put(t.Context(), of(volumeID)))
	closeStore()

	changed, direct := of(volumeID).WithoutPublication("/a"), of(volumeID)
	direct.Parameters.DirectAssign = true
	volumes := staged.Volumes{Staged: records}

	for name, err := range map[string]error{
		"Put":                       records.Put(t.Context(), changed),
		"PutIf":                     records.PutIf(t.Context(), changed, func() error { return nil }),
		"Record":                    volumes.Record(t.Context(), changed),
		"Record of a direct volume": volumes.Record(t.Context(), direct),
		"PutAll":                    records.PutAll(t.Context(), []*staged.Volume{changed, of(other)}),
		"PutLazily":                 records.PutLazily(changed),
		"DeleteLazily":              records.DeleteLazily(volumeID),
	} {
		require.Error(t, err, "want: %s fails", name)
	}

	require.Equal(t, []*staged.Volume{of(volumeID)}, records.All())
}

// TestPutAllIsAllOrNothing has one record of several that the driver would not write.
func TestPutAllIsAllOrNothing(t *testing.T) {
	t.Parallel()

	records, closeStore := open(t, t.TempDir())
	defer closeStore()

	errtext.Require(t, records.PutAll(t.Context(), []*staged.Volume{of(volumeID), of("../x")}), "record 2 volumes")
	require.Empty(t, records.All(), "want: none of the records is stored")
}

// TestRecordsAreConcurrent: they are changed and read at the same time.
func TestRecordsAreConcurrent(t *testing.T) {
	t.Parallel()

	records, closeStore := open(t, t.TempDir())
	defer closeStore()

	var changing sync.WaitGroup

	for worker := range 8 {
		changing.Go(func() {
			for i := range 300 {
				id := fmt.Sprintf("01890000-0000-7000-8000-00000000%d%03d", worker, i)

				if records.PutLazily(of(id)) != nil || len(records.All()) == 0 {
					t.Errorf("record %s is not stored", id)
				}

				if _, ok := records.Get(id); !ok {
					t.Errorf("record %s is missing", id)
				}

				if i%2 == 0 && records.DeleteLazily(id) != nil {
					t.Errorf("record %s is not deleted", id)
				}
			}
		})
	}

	changing.Wait()
	require.Len(t, records.All(), 8*150, "want: the records that were not deleted")
}

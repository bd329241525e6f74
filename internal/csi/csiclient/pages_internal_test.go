package csiclient

import (
	"context"
	"strconv"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
)

// TestEndlessListFails: a server that always has another page does not keep its client
// busy until its memory ends.
func TestEndlessListFails(t *testing.T) {
	t.Parallel()

	asked, last := 0, error(nil)

	for _, err := range pages(t.Context(), func(context.Context, string) (*csi.ListVolumesResponse, error) {
		asked++

		return &csi.ListVolumesResponse{
			Entries: make([]*csi.ListVolumesResponse_Entry, 1000), NextToken: strconv.Itoa(asked),
		}, nil
	}) {
		last = err
	}

	require.ErrorIs(t, last, ErrListTooLong)
	require.Less(t, asked, maxElements/1000+1, "want: an endless list ends at the limit of elements")
}

package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// ErrSameToken is returned instead of asking for the same page for ever.
var ErrSameToken = errors.New("ListVolumes answered with the token that it was asked with")

// Volumes walks ListVolumes page by page. pageSize 0 leaves it to the driver.
// An error is yielded once, as the last element.
func (o *Orchestrator) Volumes(ctx context.Context, pageSize int32) iter.Seq2[*csi.ListVolumesResponse_Entry, error] {
	return func(yield func(*csi.ListVolumesResponse_Entry, error) bool) {
		token := ""

		for {
			page, err := o.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: pageSize, StartingToken: token})
			if err != nil {
				yield(nil, err)

				return
			}

			for _, entry := range page.GetEntries() {
				if !yield(entry, nil) {
					return
				}
			}

			next := page.GetNextToken()
			if next == "" {
				return
			}

			if next == token {
				yield(nil, fmt.Errorf("%w: %q", ErrSameToken, token))

				return
			}

			token = next
		}
	}
}

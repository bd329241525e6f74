package controller

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
)

// maxResponseBytes keeps a page below the 4 MiB that a gRPC client accepts unless
// configured otherwise, with space for the framing.
const maxResponseBytes = 7 << 19

// page collects the entries of one page of a list that is ordered by id. Its token is the id
// of the page's last entry; it stays valid when that object is deleted.
type page[E proto.Message] struct {
	maxEntries int
	bytes      int
	entries    []E
	lastID     string
	// nextToken is empty at the end of the list.
	nextToken string
}

// listRequest is what the requests of all lists have in common.
type listRequest interface {
	GetMaxEntries() int32
	GetStartingToken() string
}

// newPage returns an empty page. Errors: INVALID_ARGUMENT, ABORTED for a token that no page
// of the method has had.
func newPage[E proto.Message](method string, request listRequest) (*page[E], error) {
	if request.GetMaxEntries() < 0 {
		return nil, rpc.Invalid("max_entries is %d; it must not be negative", request.GetMaxEntries())
	}

	if token := request.GetStartingToken(); token != "" && !volume.IsID(token) {
		return nil, rpc.Errorf(codes.Aborted, "starting_token %q is none that %s gave; list from the start", token, method)
	}

	return &page[E]{maxEntries: int(request.GetMaxEntries())}, nil
}

// add appends the entry, or returns false if the page is full.
func (p *page[E]) add(id string, entry E) bool {
	const tagAndLength = 6

	full := p.maxEntries > 0 && len(p.entries) == p.maxEntries
	if p.bytes += proto.Size(entry) + tagAndLength; full || p.bytes > maxResponseBytes {
		p.nextToken = p.lastID

		return false
	}

	p.entries, p.lastID = append(p.entries, entry), id

	return true
}

package driver

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/status"
)

const (
	// pageEntries is more than the largest page of a list has, which the size of a message bounds;
	// answers of up to smallEntries are not limited.
	pageEntries  = 32 << 10
	smallEntries = 1000
	// maxListEntries is how many entries all other answers may have at once; one takes about 400
	// bytes until it is encoded.
	maxListEntries = 4 * pageEntries
)

// listLimiter bounds the memory of large answers to lists.
type listLimiter struct{ entries *semaphore.Weighted }

func newListLimiter() *listLimiter { return &listLimiter{semaphore.NewWeighted(maxListEntries)} }

// acquire waits until the entries that the request may get are within the limit, or ctx ends. They
// are until the response is encoded and ctx, the call's, has ended, or release is called. A nil
// error is for other requests, too.
func (l *listLimiter) acquire(ctx context.Context, request any) (release func(), err error) {
	list, ok := request.(interface {
		GetMaxEntries() int32
		GetStartingToken() string
	})
	if !ok {
		return func() {}, nil
	}

	entries := int64(pageEntries)
	if most := int64(list.GetMaxEntries()); most > 0 {
		entries = min(entries, most)
	}

	if entries <= smallEntries {
		return func() {}, nil
	}

	if err := l.entries.Acquire(ctx, entries); err != nil {
		return nil, status.FromContextError(err).Err()
	}

	release = sync.OnceFunc(func() { l.entries.Release(entries) })
	context.AfterFunc(ctx, release)

	return release, nil
}

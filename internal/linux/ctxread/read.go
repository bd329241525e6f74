// Package ctxread reads files of events, which have no end, until a context ends.
package ctxread

import (
	"context"
	"os"
	"time"
)

// Each passes the data and time of each read of file to take, until ctx ends, which is
// no error, or a read or take fails. The file is in the runtime's poller, so no thread
// is blocked.
func Each(ctx context.Context, file *os.File, sizeBytes int, take func(at time.Time, data []byte) error) error {
	stop := context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Now()) })
	defer stop()

	buffer := make([]byte, sizeBytes)

	for {
		count, err := file.Read(buffer)
		at := time.Now()

		if ctx.Err() != nil {
			return nil
		}

		if err != nil {
			return err
		}

		if err := take(at, buffer[:count]); err != nil {
			return err
		}
	}
}

// BatchPause is a pause between reads of sources with many events: events gather in the kernel instead
// of costing a wake-up each. The first one is not delayed.
const BatchPause = time.Millisecond

// Pause returns after d, or when ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

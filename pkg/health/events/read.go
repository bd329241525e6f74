package events

import (
	"context"
	"os"
	"time"
)

// pause is how long what comes after a read shall gather in the kernel, of
// sources that may storm: it keeps the events from costing a wake-up each, and the
// first of them comes without any delay.
const pause = time.Millisecond

// read hands take what each read of file has given, and when that was, until ctx
// ends, which is no error, or a read or take fails. The file waits in the
// runtime's poller, so that no thread is held meanwhile.
func read(ctx context.Context, file *os.File, sizeBytes int, take func(at time.Time, data []byte) error) error {
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
			return err //nolint:wrapcheck // it names the file, and the callers say what for
		}

		if err := take(at, buffer[:count]); err != nil {
			return err
		}
	}
}

// rest returns after d, or when ctx ends.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

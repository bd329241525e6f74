package vm_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/test/await"
)

const (
	blockBytes = 128 << 10
	// blockCount blocks are the whole file: it fits the smallest volume, and is
	// written over and over, so that the writer never has to stop.
	blockCount = 64
)

var errDataChanged = errors.New("the data is not what was written")

// workload is an application with a file in the volume: it holds it open and
// overwrites its blocks in turn, each time with other bytes, whatever is done
// to the volume meanwhile. It remembers the checksum of each block.
type workload struct {
	file *os.File
	quit chan struct{}
	done chan struct{} // Closed when the writer has ended.

	mu      sync.Mutex
	changed *sync.Cond // Signalled with each block, and when the writer ends.
	written uint64     // Blocks so far.
	sums    [blockCount][sha256.Size]byte
	err     error // Why the writer ended, unless it was asked to.
}

// startWorkload returns when each block of the file has been written once.
func startWorkload(t *testing.T, path string) *workload {
	t.Helper()

	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, fileMode)
	require.NoError(t, err)

	w := &workload{file: file, quit: make(chan struct{}), done: make(chan struct{})}
	w.changed = sync.NewCond(&w.mu)

	go w.write()

	t.Cleanup(w.stop) // For a test that fails before it has stopped the writer.
	w.awaitRound(t)

	return w
}

func (w *workload) write() {
	defer close(w.done)

	block := make([]byte, blockBytes)

	for generation := uint64(0); ; generation++ {
		select {
		case <-w.quit:
			return
		default:
		}

		fill(block, generation)

		if err := w.put(generation, block); err != nil {
			return
		}
	}
}

// put writes the block under the lock, so that verify never sees half of one.
func (w *workload) put(generation uint64, block []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.changed.Broadcast()

	slot := int64(generation % blockCount)

	if _, w.err = w.file.WriteAt(block, slot*blockBytes); w.err != nil {
		return w.err
	}

	// Now and then onto the disk, or the page cache would absorb it all.
	if slot%16 == 15 {
		if w.err = unix.Fdatasync(int(w.file.Fd())); w.err != nil {
			return w.err
		}
	}

	w.sums[slot] = sha256.Sum256(block)
	w.written++

	return nil
}

// awaitRound returns when the whole file has been written once more from now:
// the writer is alive and nothing has gone wrong.
func (w *workload) awaitRound(t *testing.T) {
	t.Helper()

	var err error

	await.ReturnWithin(t, waitLimit, func() {
		w.mu.Lock()
		defer w.mu.Unlock()

		for target := w.written + blockCount; w.written < target && w.err == nil; {
			w.changed.Wait()
		}

		err = w.err
	}, "the workload to write its file once more")
	require.NoError(t, err, "the workload's write")
}

// verify compares the file's blocks on the disk with what was written last.
func (w *workload) verify(t *testing.T, file *os.File) {
	t.Helper()

	w.mu.Lock()
	defer w.mu.Unlock()

	require.NoError(t, w.err, "the workload's write")
	dropCache(t, file)

	block := make([]byte, blockBytes)

	for slot := range w.sums {
		_, err := file.ReadAt(block, int64(slot)*blockBytes)
		require.NoError(t, err, "read block %d", slot)
		require.Equal(t, w.sums[slot], sha256.Sum256(block), "block %d: %v", slot, errDataChanged)
	}
}

// stop ends the writer; the volume is no longer in use when it returns.
func (w *workload) stop() {
	w.mu.Lock()
	select {
	case <-w.quit:
	default:
		close(w.quit)
	}
	w.mu.Unlock()
	<-w.done
	_ = w.file.Close() // What matters is synced, and read back later.
}

// fill makes bytes that depend on nothing but the seed.
func fill(block []byte, seed uint64) {
	var key [32]byte

	binary.LittleEndian.PutUint64(key[:], seed)
	_, _ = rand.NewChaCha8(key).Read(block) // It never fails.
}

// reserve makes a file whose size bytes are allocated, but not written: the
// filesystem has to find the space, the emulated processor little to do.
func reserve(t *testing.T, path string, size int64) {
	t.Helper()

	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	require.NoError(t, err)

	defer file.Close()

	require.NoError(t, unix.Fallocate(int(file.Fd()), 0, 0, size), "allocate %d MiB", size/mib)
}

// writeStream fills a new file with size bytes that verifyStream knows.
func writeStream(t *testing.T, path string, size int64) {
	t.Helper()

	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	require.NoError(t, err)

	defer file.Close()

	_, err = io.CopyN(file, rand.NewChaCha8([32]byte{}), size)
	require.NoError(t, err, "write %d MiB to the grown volume", size/mib)
	require.NoError(t, file.Sync())
}

func verifyStream(t *testing.T, path string, size int64) {
	t.Helper()

	file, err := os.Open(path)
	require.NoError(t, err)

	defer file.Close()

	dropCache(t, file)
	require.NoError(t, sameStream(file, rand.NewChaCha8([32]byte{}), size), path)
}

func sameStream(got, want io.Reader, size int64) error {
	one, other := make([]byte, blockBytes), make([]byte, blockBytes)

	for offset := int64(0); offset < size; offset += blockBytes {
		if _, err := io.ReadFull(got, one); err != nil {
			return fmt.Errorf("read at %d: %w", offset, err)
		}

		_, _ = io.ReadFull(want, other)

		if !bytes.Equal(one, other) {
			return fmt.Errorf("%w: at %d", errDataChanged, offset)
		}
	}

	return nil
}

// dropCache makes the next reads come from the volume and not from memory.
func dropCache(t *testing.T, file *os.File) {
	t.Helper()

	require.NoError(t, file.Sync())
	require.NoError(t, unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED))
}

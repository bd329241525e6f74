package writelog

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
)

// Kind is what an entry does to the disk.
type Kind uint32

// The kinds.
const (
	// Write changes bytes.
	Write Kind = iota + 1
	// Zero makes bytes read as zeros: a discard, or a write of zeros without data.
	Zero
	// Flush makes all entries before it durable.
	Flush
)

// Entry is one request to the disk. Offset and Length are in bytes, and 0 of a Flush.
type Entry struct {
	Kind   Kind
	Offset int64
	Length int64
}

// headerBytes is the size of an encoded Entry; the data of a Write follow it.
const headerBytes = 4 + 8 + 8

// Writer appends to a log. It is safe for concurrent use.
type Writer struct {
	mu      sync.Mutex
	file    *os.File
	buffer  *bufio.Writer
	entries int
}

// Create makes a new log at path.
func Create(path string) (*Writer, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create log of writes: %w", err)
	}

	return &Writer{file: file, buffer: bufio.NewWriterSize(file, 1<<20)}, nil
}

// Append adds an entry, with its data if it is a Write, and then calls do, so that concurrent
// requests reach disk and log in the same order.
func (w *Writer) Append(entry Entry, data [][]byte, do func()) error {
	w.mu.Lock()
	defer w.mu.Unlock()

	header := make([]byte, 0, headerBytes)
	header = binary.LittleEndian.AppendUint32(header, uint32(entry.Kind))
	header = binary.LittleEndian.AppendUint64(header, uint64(entry.Offset))
	header = binary.LittleEndian.AppendUint64(header, uint64(entry.Length))

	for _, part := range append([][]byte{header}, data...) {
		if _, err := w.buffer.Write(part); err != nil {
			return fmt.Errorf("append to the log of writes: %w", err)
		}
	}

	w.entries++

	do()

	return nil
}

// Entries returns the number of entries.
func (w *Writer) Entries() int {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.entries
}

// Close writes what is buffered and closes the log.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()

	return errors.Join(w.buffer.Flush(), w.file.Close())
}

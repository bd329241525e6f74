package state

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
)

// frozen is a version of one collection of any type.
type frozen interface {
	each(fn func(key string, value any) error) error
}

type namedFrozen struct {
	frozen

	name string
}

// snapshotSyncBytes is how much of a snapshot may be waiting in the page cache:
// a large flush would keep the journal's fdatasync waiting.
const snapshotSyncBytes = 4 << 20

// The fixed parts of a snapshot's lines.
const (
	snapshotIndent  = "      "
	collectionOpen  = `    "`
	collectionClose = `    }`
	recordOpen      = `: {"crc32c":"`
	recordClose     = `","record":`
	checksumLine    = `  "crc32c": "`
)

// snapshotWriter writes state.json. The first error sticks.
type snapshotWriter struct {
	ctx      context.Context //nolint:containedctx // lives as long as one call of writeSnapshot
	file     File
	out      *bufio.Writer
	sum      uint32
	written  int64
	unsynced int
	err      error
	line     []byte
	encoded  bytes.Buffer
	encoder  *json.Encoder
}

// fileAppender makes an io.Writer of a File.
type fileAppender struct {
	file   File
	offset int64
}

func (a *fileAppender) Write(data []byte) (int, error) {
	err := writeAll(a.file, data, a.offset)
	if err != nil {
		return 0, err
	}

	a.offset += int64(len(data))

	return len(data), nil
}

// writeSnapshot writes and makes durable, under a temporary name, all records
// at a sequence number, and gives it its name only when it is whole. It returns
// the file's size in bytes. renamed reports whether the file has its name, though
// perhaps not durably.
func writeSnapshot(
	ctx context.Context, files FS, dir string, sequence uint64, all []namedFrozen,
) (size int64, renamed bool, err error) {
	draft := filepath.Join(dir, snapshotDraft)

	file, err := files.OpenFile(draft, os.O_RDWR|os.O_CREATE|os.O_TRUNC, fileMode)
	if err != nil {
		return 0, false, fmt.Errorf("make a snapshot: %w", err)
	}

	w := &snapshotWriter{ctx: ctx, file: file, out: bufio.NewWriterSize(&fileAppender{file: file}, bufferBytes)}
	w.encoder = json.NewEncoder(&w.encoded)
	w.writeDocument(sequence, all)

	err = errors.Join(w.err, file.Close())
	if err != nil {
		return 0, false, errors.Join(fmt.Errorf("write a snapshot: %w", err), removeIfThere(files, draft))
	}

	err = files.Rename(draft, filepath.Join(dir, snapshotName))
	if err != nil {
		return 0, false, fmt.Errorf("name the snapshot: %w", err)
	}

	err = files.SyncDir(dir)
	if err != nil {
		return 0, true, fmt.Errorf("make the snapshot's name durable: %w", err)
	}

	return w.written, true, nil
}

func (w *snapshotWriter) writeDocument(sequence uint64, all []namedFrozen) {
	w.put("{\n  \"format\": \"" + snapshotFormat + "\",\n")
	w.put("  \"version\": " + strconv.Itoa(formatVersion) + ",\n")
	w.put("  \"sequence\": " + strconv.FormatUint(sequence, 10) + ",\n")
	w.put("  \"collections\": {\n")

	records := 0

	for i, each := range all {
		records += w.writeCollection(each, i == len(all)-1)
	}

	w.put("  },\n  \"records\": " + strconv.Itoa(records) + ",\n")
	w.put(checksumLine + string(checksumText(w.sum)) + "\"\n}\n")

	if w.err == nil {
		w.err = w.out.Flush()
	}

	if w.err == nil {
		w.err = w.file.Sync()
	}
}

func (w *snapshotWriter) writeCollection(c namedFrozen, last bool) int {
	w.put("    " + string(appendJSONString(nil, c.name)) + ": {\n")

	records := 0
	err := c.each(func(key string, value any) error {
		if records > 0 {
			w.put(",\n")
		}

		records++

		return w.writeRecord(key, value)
	})

	if w.err == nil {
		w.err = err
	}

	if records > 0 {
		w.put("\n")
	}

	w.put(collectionClose)

	if !last {
		w.put(",")
	}

	w.put("\n")

	return records
}

func (w *snapshotWriter) writeRecord(key string, value any) error {
	w.encoded.Reset()

	err := w.encoder.Encode(value)
	if err != nil {
		return fmt.Errorf("record %q: %w", key, err)
	}

	record := bytes.TrimSuffix(w.encoded.Bytes(), []byte{'\n'})
	w.line = append(w.line[:0], snapshotIndent...)
	w.line = appendJSONString(w.line, key)
	sum := recordChecksum(w.line[len(snapshotIndent):], record)
	w.line = append(w.line, recordOpen...)
	w.line = append(w.line, sum...)
	w.line = append(w.line, recordClose...)
	w.line = append(w.line, record...)
	w.line = append(w.line, '}')
	w.putBytes(w.line)

	return w.err
}

// recordChecksum covers the key as it is written, and the record.
func recordChecksum(quotedKey, record []byte) []byte {
	sum := crc32.Checksum(quotedKey, castagnoli())

	return checksumText(crc32.Update(sum, castagnoli(), record))
}

func (w *snapshotWriter) put(text string) { w.putBytes([]byte(text)) }

func (w *snapshotWriter) putBytes(text []byte) {
	if w.err != nil {
		return
	}

	w.sum = crc32.Update(w.sum, castagnoli(), text)
	w.written += int64(len(text))
	w.unsynced += len(text)

	_, w.err = w.out.Write(text)
	if w.err != nil || w.unsynced < snapshotSyncBytes {
		return
	}

	w.unsynced = 0

	w.err = w.ctx.Err()
	if w.err == nil {
		w.err = w.file.Sync()
	}
}

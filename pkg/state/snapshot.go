package state

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
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

// bufferBytes is what is read or written at once.
const bufferBytes = 128 << 10

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
// the file's size in bytes. renamed tells whether the name is taken, though
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

// snapshotScanner reads state.json line by line. What it is strict about is
// what the writer writes: anything else was not written by it.
type snapshotScanner struct {
	path     string
	lines    *lineReader
	sum      uint32
	sequence uint64
	records  int
	// headed is true once the sequence number is known.
	headed bool
}

func (s *snapshotScanner) damage(reason string, args ...any) *DamageError {
	return &DamageError{File: s.path, Line: s.lines.number, Reason: fmt.Sprintf(reason, args...)}
}

// next returns a line without its newline, nil at the end of the file.
func (s *snapshotScanner) next() ([]byte, error) {
	line, whole, err := s.lines.next()
	if err != nil {
		return nil, err
	}

	if line == nil {
		return nil, s.damage("the file ends early")
	}

	if !whole {
		return nil, s.damage("the file ends within a line")
	}

	return line, nil
}

func (s *snapshotScanner) cover(line []byte) {
	s.sum = crc32.Update(s.sum, castagnoli(), line)
	s.sum = crc32.Update(s.sum, castagnoli(), []byte{'\n'})
}

// expect reads one line that starts with prefix and returns the rest of it.
func (s *snapshotScanner) expect(prefix, suffix string) (string, error) {
	line, err := s.next()
	if err != nil {
		return "", err
	}

	rest, ok := bytes.CutPrefix(line, []byte(prefix))
	if !ok {
		return "", s.damage("a line starting with %s was to be here", prefix)
	}

	rest, ok = bytes.CutSuffix(rest, []byte(suffix))
	if !ok {
		return "", s.damage("the line does not end in %q", suffix)
	}

	s.cover(line)

	return string(rest), nil
}

func (s *snapshotScanner) head() error {
	for _, line := range []string{"{", `  "format": "` + snapshotFormat + `",`} {
		rest, err := s.expect(line, "")
		if err != nil {
			return err
		}

		if rest != "" {
			return s.damage("%q was to be here", line)
		}
	}

	version, err := s.expect(`  "version": `, ",")
	if err != nil {
		return err
	}

	if version != strconv.Itoa(formatVersion) {
		damage := s.damage("version %s of the format is unknown to this program, which knows %d", version, formatVersion)
		damage.hopeless = true

		return damage
	}

	sequence, err := s.expect(`  "sequence": `, ",")
	if err != nil {
		return err
	}

	s.sequence, err = strconv.ParseUint(sequence, 10, 64)
	if err != nil {
		return s.damage("sequence %q is not a number", sequence)
	}

	s.headed = true

	rest, err := s.expect(`  "collections": {`, "")
	if err == nil && rest != "" {
		err = s.damage(`"collections" has more on its line`)
	}

	return err
}

// collections calls record for each line of a record, and returns behind the
// last collection.
func (s *snapshotScanner) collections(
	collection func(name string) error, record func(line []byte, number int) error,
) error {
	inside := false

	for {
		line, err := s.next()
		if err != nil {
			return err
		}

		s.cover(line)

		switch {
		case inside && bytes.HasPrefix(line, []byte(snapshotIndent)):
			s.records++
			err = record(line, s.lines.number)
		case inside && (string(line) == collectionClose || string(line) == collectionClose+","):
			inside = false
		case !inside && bytes.HasPrefix(line, []byte(collectionOpen)) && bytes.HasSuffix(line, []byte(": {")):
			inside = true
			err = s.collection(line, collection)
		case !inside && string(line) == "  },":
			return nil
		default:
			return s.damage("neither a record nor the start or end of a collection")
		}

		if err != nil {
			return err
		}
	}
}

func (s *snapshotScanner) collection(line []byte, fn func(name string) error) error {
	var name string

	quoted := line[len(collectionOpen)-1 : len(line)-len(": {")]
	if json.Unmarshal(quoted, &name) != nil {
		return s.damage("collection %s has a bad name", quoted)
	}

	return fn(name)
}

func (s *snapshotScanner) tail() error {
	records, err := s.expect(`  "records": `, ",")
	if err != nil {
		return err
	}

	if records != strconv.Itoa(s.records) {
		return s.damage("%s records were written, %d are there", records, s.records)
	}

	want := string(checksumText(s.sum))

	sum, err := s.expect(checksumLine, `"`)
	if err != nil {
		return err
	}

	if sum != want {
		return s.damage("the file's checksum is %s, its contents have %s", sum, want)
	}

	rest, err := s.expect("}", "")
	if err != nil {
		return err
	}

	line, _, err := s.lines.next()
	if err == nil && (line != nil || rest != "") {
		err = s.damage("there is more behind the end")
	}

	return err
}

// parseRecordLine takes a record's line apart and checks its checksum.
func parseRecordLine(line []byte) (key string, record []byte, err error) {
	text := bytes.TrimPrefix(line, []byte(snapshotIndent))
	text = bytes.TrimSuffix(text, []byte{','})
	end := endOfString(text)

	if end < 0 || !bytes.HasPrefix(text[end:], []byte(recordOpen)) {
		return "", nil, errRecordShape
	}

	quoted, rest := text[:end], text[end+len(recordOpen):]
	if len(rest) < checksumHex+len(recordClose)+1 || rest[len(rest)-1] != '}' ||
		string(rest[checksumHex:checksumHex+len(recordClose)]) != recordClose {
		return "", nil, errRecordShape
	}

	record = rest[checksumHex+len(recordClose) : len(rest)-1]

	if !bytes.Equal(rest[:checksumHex], recordChecksum(quoted, record)) {
		return "", nil, errChecksum
	}

	key, err = parseString(quoted)

	return key, record, err
}

// parseString reads a JSON string, at once where it is as plain as keys are.
func parseString(quoted []byte) (string, error) {
	text := string(quoted[1 : len(quoted)-1])
	if isPlain(text) {
		return text, nil
	}

	err := json.Unmarshal(quoted, &text)
	if err != nil {
		return "", errRecordShape
	}

	return text, nil
}

var errRecordShape = errors.New("line is not a record")

// endOfString returns the index behind the JSON string that text starts with,
// -1 if there is none.
func endOfString(text []byte) int {
	if len(text) == 0 || text[0] != '"' {
		return -1
	}

	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}

	return -1
}

// lineReader reads lines of any length and counts them.
type lineReader struct {
	in *bufio.Reader
	// number is that of the line last read, from 1.
	number int
	// offset is where the next line starts, in bytes.
	offset int64
	long   []byte
}

func readLines(file File) (*lineReader, error) {
	size, err := file.Size()
	if err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}

	return &lineReader{in: bufio.NewReaderSize(io.NewSectionReader(file, 0, size), bufferBytes)}, nil
}

// skipEmpty passes over empty lines.
func (r *lineReader) skipEmpty() {
	for {
		// An error is the end, or comes back with the next line.
		_, _ = r.in.Peek(1)
		ahead, _ := r.in.Peek(r.in.Buffered())

		empty := 0
		for empty < len(ahead) && ahead[empty] == '\n' {
			empty++
		}

		if empty == 0 {
			return
		}

		r.number += empty
		r.offset += int64(empty)
		_, _ = r.in.Discard(empty)
	}
}

// next returns a line without its newline, valid until the following call; nil
// at the end. whole is false for a last line that lacks its newline.
func (r *lineReader) next() (line []byte, whole bool, err error) {
	r.long = r.long[:0]

	for {
		part, err := r.in.ReadSlice('\n')
		r.offset += int64(len(part))

		switch {
		case err == nil && len(r.long) == 0:
			r.number++

			return part[:len(part)-1], true, nil
		case err == nil:
			r.number++
			r.long = append(r.long, part[:len(part)-1]...)

			return r.long, true, nil
		case errors.Is(err, bufio.ErrBufferFull):
			r.long = append(r.long, part...)
		case errors.Is(err, io.EOF):
			r.long = append(r.long, part...)
			if len(r.long) == 0 {
				return nil, false, nil
			}

			r.number++

			return r.long, false, nil
		default:
			return nil, false, fmt.Errorf("read state: %w", err)
		}
	}
}

package state

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	formatVersion  = 1
	journalFormat  = "touchstone-journal"
	snapshotFormat = "touchstone-state"
	operationPut   = "put"
	operationDel   = "delete"
)

// Each line starts with its checksum, which covers everything behind it.
const (
	checksumOpen  = `{"crc32c":"`
	checksumClose = `",`
	checksumHex   = 8
	checksumBytes = len(checksumOpen) + checksumHex + len(checksumClose)
)

// journalChunk is the unit, in bytes, in which the journal is preallocated.
// Overwriting preallocated bytes changes neither size nor extents, so fdatasync
// is one write. They are newlines, not zeros or unwritten extents, so that jq can
// read the file at any time.
const journalChunk = 256 << 10

// preallocated returns the size in bytes up to which the journal holds durable
// newlines before a line that ends at end is written. It is always beyond end.
func preallocated(end int64) int64 { return (end/journalChunk + 1) * journalChunk }

type journalHeader struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	// After is the sequence number of the transaction before the first one.
	After uint64 `json:"after"`
}

type journalLine struct {
	Sequence uint64 `json:"sequence"`
	// Batch is the sequence number of the first transaction that was made
	// durable together with this one: all before it were durable already.
	Batch   uint64          `json:"batch"`
	Changes []journalChange `json:"changes"`
	// Closed is alone on its line, and is the sequence number at a clean end.
	// Damage to the last lines before it cannot be an interrupted write.
	Closed *uint64 `json:"closed"`
}

// durableBefore is up to which transaction all was durable when the line was
// written.
func (l journalLine) durableBefore() uint64 {
	if l.Closed != nil {
		return *l.Closed
	}

	return max(l.Batch, 1) - 1
}

type journalChange struct {
	Operation  string          `json:"operation"`
	Collection string          `json:"collection"`
	Key        string          `json:"key"`
	Record     json.RawMessage `json:"record"`
}

func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

func appendPut(to []byte, collection, key string, record []byte) []byte {
	to = appendOperation(to, operationPut, collection, key)
	to = append(to, `,"record":`...)
	to = append(to, record...)

	return append(to, '}')
}

func appendDelete(to []byte, collection, key string) []byte {
	return append(appendOperation(to, operationDel, collection, key), '}')
}

func appendOperation(to []byte, operation, collection, key string) []byte {
	if len(to) > 0 {
		to = append(to, ',')
	}

	to = append(to, `{"operation":"`...)
	to = append(to, operation...)
	to = append(to, `","collection":`...)
	to = appendJSONString(to, collection)
	to = append(to, `,"key":`...)

	return appendJSONString(to, key)
}

func appendJSONString(to []byte, text string) []byte {
	if !isPlain(text) {
		return appendOddString(to, text)
	}

	to = append(to, '"')
	to = append(to, text...)

	return append(to, '"')
}

// isPlain says whether the text is the same in JSON, but for the quotes.
func isPlain(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}

	return true
}

func appendOddString(to []byte, text string) []byte {
	// A string always has a form in JSON.
	encoded, _ := json.Marshal(text) //nolint:errchkjson // see above

	return append(to, encoded...)
}

func appendTransaction(to []byte, sequence, first uint64, changes []byte) []byte {
	start := len(to)
	to = appendChecksumRoom(to)
	to = append(to, `"sequence":`...)
	to = strconv.AppendUint(to, sequence, 10)
	to = append(to, `,"batch":`...)
	to = strconv.AppendUint(to, first, 10)
	to = append(to, `,"changes":[`...)
	to = append(to, changes...)
	to = append(to, `]}`...)
	setChecksum(to[start:])

	return append(to, '\n')
}

func appendHeader(to []byte, after uint64) []byte {
	start := len(to)
	to = appendChecksumRoom(to)
	to = append(to, `"format":"`+journalFormat+`","version":`...)
	to = strconv.AppendInt(to, formatVersion, 10)
	to = append(to, `,"after":`...)
	to = strconv.AppendUint(to, after, 10)
	to = append(to, '}')
	setChecksum(to[start:])

	return append(to, '\n')
}

func appendClosed(to []byte, last uint64) []byte {
	start := len(to)
	to = appendChecksumRoom(to)
	to = append(to, `"closed":`...)
	to = strconv.AppendUint(to, last, 10)
	to = append(to, '}')
	setChecksum(to[start:])

	return append(to, '\n')
}

func appendChecksumRoom(to []byte) []byte {
	return append(to, checksumOpen+"00000000"+checksumClose...)
}

func setChecksum(line []byte) {
	copy(line[len(checksumOpen):], checksumText(crc32.Checksum(line[checksumBytes:], castagnoli())))
}

func checksumText(sum uint32) []byte {
	return hex.AppendEncode(nil, binary.BigEndian.AppendUint32(nil, sum))
}

var (
	errShape    = errors.New("line is not of the journal's form")
	errChecksum = errors.New("checksum is wrong")
)

// checkLine says whether a line without its newline is as it was written.
func checkLine(line []byte) error {
	if len(line) <= checksumBytes || !bytes.HasPrefix(line, []byte(checksumOpen)) ||
		string(line[checksumBytes-len(checksumClose):checksumBytes]) != checksumClose {
		return errShape
	}

	want := line[len(checksumOpen) : len(checksumOpen)+checksumHex]
	if !bytes.Equal(want, checksumText(crc32.Checksum(line[checksumBytes:], castagnoli()))) {
		return errChecksum
	}

	return nil
}

// journal is the file that transactions are appended to. It is owned by the
// holder of the store's token.
type journal struct {
	file File
	// end is where the next line goes, in bytes; all before it is durable.
	end int64
	// filled is up to where the file is durable, lines or newlines. It is at
	// least preallocated(end).
	filled int64
	// closed is true while nothing follows the line of a clean end, or the head.
	closed bool
}

// append makes lines durable. After an error that is not errNoSpace nothing may be
// appended any more; after errNoSpace, nothing before wipe.
func (j *journal) append(lines []byte) error {
	err := j.fill(j.end + int64(len(lines)))
	if err != nil {
		return err
	}

	err = writeAll(j.file, lines, j.end)
	if err != nil {
		return err
	}

	err = j.file.Sync()
	if err != nil {
		return fmt.Errorf("make %s durable: %w", journalName, err)
	}

	j.end += int64(len(lines))
	j.closed = false

	return nil
}

// close marks a clean end and gives the file free. last is the number of the
// last transaction.
func (j *journal) close(last uint64, healthy bool) error {
	var err error
	if healthy && !j.closed {
		err = j.append(appendClosed(nil, last))
	}

	return errors.Join(err, j.file.Close())
}

// fill preallocates the journal for a line that ends at end. The newlines are
// synced before a line overwrites any of them: so a start can distinguish an interrupted
// write from damage (see checkTail).
func (j *journal) fill(end int64) error {
	if end < j.filled {
		return nil
	}

	filled := preallocated(end)

	err := writeAll(j.file, bytes.Repeat([]byte{'\n'}, int(filled-j.filled)), j.filled)
	if err != nil {
		return err
	}

	err = j.file.Sync()
	if err != nil {
		return fmt.Errorf("preallocate %s: %w", journalName, err)
	}

	j.filled = filled

	return nil
}

// wipe overwrites what follows the last durable line with newlines. It does not
// shorten the preallocated part: a crash could leave the file too short.
func (j *journal) wipe() error {
	err := writeAll(j.file, bytes.Repeat([]byte{'\n'}, int(j.filled-j.end)), j.end)
	if err != nil {
		return err
	}

	err = j.file.Truncate(j.filled)
	if err != nil {
		return fmt.Errorf("truncate %s: %w", journalName, err)
	}

	return nil
}

// errNoSpace marks a write, not a sync, that failed for lack of space: what was
// durable before still is, and a later write may succeed.
var errNoSpace = errors.New("no space")

func writeAll(file File, data []byte, offset int64) error {
	n, err := file.WriteAt(data, offset)
	if err == nil && n < len(data) {
		err = errors.New("short write") //nolint:err113 // no caller distinguishes it
	}

	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("%w: write: %w", errNoSpace, err)
	default:
		return fmt.Errorf("write: %w", err)
	}
}

// draftJournal makes an empty journal under a temporary name.
func draftJournal(files FS, path string, after uint64) (*journal, error) {
	file, err := files.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, fileMode)
	if err != nil {
		return nil, fmt.Errorf("make a journal: %w", err)
	}

	drafted := &journal{file: file}

	err = drafted.append(appendHeader(nil, after))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a journal: %w", err), file.Close())
	}

	drafted.closed = true

	return drafted, nil
}

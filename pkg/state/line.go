package state

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"unicode"
)

const (
	journalFormat = "touchstone-state"
	formatVersion = 1
)

// Each line starts with its checksum, which covers everything behind it.
const (
	checksumOpen  = `{"crc32c":"`
	checksumClose = `",`
	checksumHex   = 8
	checksumBytes = len(checksumOpen) + checksumHex + len(checksumClose)
	// checksumSpace is the start of a line without its checksum.
	checksumSpace = checksumOpen + "00000000" + checksumClose
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// line is a line of the journal. Its kind follows from the fields that are set.
type line struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	// Collections counts the records of the base.
	Collections map[string]int `json:"collections"`
	// Sequence numbers the changes without a gap. The header has that of the last one that the
	// base contains.
	Sequence uint64 `json:"sequence"`
	// Batch is the first change that was not durable when this line was written.
	Batch uint64 `json:"batch"`
	// More means that the next line belongs to the same transaction.
	More       bool   `json:"more"`
	Collection string `json:"collection"`
	Key        string `json:"key"`
	// Record is null if the change deletes the record.
	Record json.RawMessage `json:"record"`
	// Closed is the last change before a clean end.
	Closed *uint64 `json:"closed"`
}

type kind int

const (
	invalidLine kind = iota
	headerLine
	recordLine
	changeLine
	closedLine
)

func (l *line) kind() kind {
	switch {
	case l.Format != "":
		return headerLine
	case l.Closed != nil:
		return closedLine
	case l.Collection == "" || l.Key == "" || len(l.Record) == 0:
		return invalidLine
	case l.Sequence == 0 && !l.deletes():
		return recordLine
	case l.Sequence > 0 && l.Batch > 0 && l.Batch <= l.Sequence:
		return changeLine
	default:
		return invalidLine
	}
}

func (l *line) deletes() bool { return string(l.Record) == "null" }

// durableBefore is the change up to which all was durable when the line was written.
func (l *line) durableBefore() uint64 {
	if l.Closed != nil {
		return *l.Closed
	}
	return max(l.Batch, 1) - 1
}

func appendHeader(to []byte, sequence uint64, collections map[string]int) []byte {
	// A map of numbers always has a form in JSON.
	counts, _ := json.Marshal(collections) //nolint:errchkjson // see above
	return appendLine(to, `"format":"%s","version":%d,"sequence":%d,"collections":%s`,
		journalFormat, formatVersion, sequence, counts)
}

func appendRecord(to []byte, collection, key string, record []byte) []byte {
	start := len(to)
	to = append(to, checksumSpace+`"collection":`...)
	to = appendQuoted(to, collection)
	to = append(to, `,"key":`...)
	to = appendQuoted(to, key)
	to = append(to, `,"record":`...)
	to = append(to, record...)

	return endLine(to, start)
}

func appendChange(to []byte, sequence, batch uint64, more bool, collection, key string, record []byte) []byte {
	marker := ""
	if more {
		marker = `"more":true,`
	}
	return appendLine(to, `"sequence":%d,"batch":%d,%s"collection":%s,"key":%s,"record":%s`,
		sequence, batch, marker, quote(collection), quote(key), record)
}

// appendLine appends a line with its checksum.
func appendLine(to []byte, format string, args ...any) []byte {
	return endLine(fmt.Appendf(append(to, checksumSpace...), format, args...), len(to))
}

// endLine ends the line from start on, which begins with checksumSpace.
func endLine(to []byte, start int) []byte {
	to = append(to, '}')
	text := to[start:]
	sum := crc32.Checksum(text[checksumBytes:], castagnoli)
	hex.Encode(text[len(checksumOpen):], binary.BigEndian.AppendUint32(nil, sum))

	return append(to, '\n')
}

func quote(text string) []byte { return appendQuoted(nil, text) }

// appendQuoted appends the form that text has in JSON. That of ids and names of collections is the
// text itself, which a compaction writes for each record.
func appendQuoted(to []byte, text string) []byte {
	if strings.ContainsFunc(text, func(r rune) bool { return r != '-' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		// Every string has a form in JSON.
		quoted, _ := json.Marshal(text) //nolint:errchkjson // see above

		return append(to, quoted...)
	}

	to = append(to, '"')
	to = append(to, text...)

	return append(to, '"')
}

var (
	errForm     = errors.New("line is not of the journal's form")
	errChecksum = errors.New("checksum is wrong")
)

// checkLine returns whether a line without its newline is as it was written.
func checkLine(text []byte) error {
	if len(text) <= checksumBytes || !bytes.HasPrefix(text, []byte(checksumOpen)) ||
		string(text[checksumBytes-len(checksumClose):checksumBytes]) != checksumClose {
		return errForm
	}
	var sum [4]byte
	binary.BigEndian.PutUint32(sum[:], crc32.Checksum(text[checksumBytes:], castagnoli))
	if !bytes.Equal(hex.AppendEncode(nil, sum[:]), text[len(checksumOpen):len(checksumOpen)+checksumHex]) {
		return errChecksum
	}
	return nil
}

// parseLine decodes a line without its newline. The record, its last member, is not decoded but
// cut off: to skip it, encoding/json would read it twice. The bytes that introduce it cannot be
// within a string, where each quote has a backslash before it.
func parseLine(text []byte) (line, error) {
	if l, ok := parseRecord(text); ok {
		return l, nil
	}
	var l line
	members, record, found := bytes.Cut(text, []byte(`,"record":`))
	if found {
		members = append(bytes.Clone(members), '}')
	}
	err := json.Unmarshal(members, &l)
	if found {
		l.Record = bytes.TrimSuffix(record, []byte{'}'})
	}
	if err != nil || l.kind() == invalidLine {
		return line{}, errForm
	}
	return l, nil
}

// parseRecord is parseLine for a line of the base whose key has no escaped characters. That is
// nearly all of a journal after a compaction, and spares a start one decoding per record. The end of
// a change, of which an interrupted write left no more, is no such line.
func parseRecord(text []byte) (line, bool) {
	if len(text) < checksumBytes || !bytes.HasPrefix(text, []byte(checksumOpen)) {
		return line{}, false
	}
	var l line
	members := [3]string{`"collection":"`, `,"key":"`, `,"record":`}
	rest, ok := bytes.CutPrefix(text[checksumBytes:], []byte(members[0]))
	for i, target := range []*string{&l.Collection, &l.Key} {
		value, behind, found := bytes.Cut(rest, []byte{'"'})
		ok = ok && found && bytes.IndexByte(value, '\\') < 0
		*target = string(value)
		if !ok {
			return line{}, false
		}
		rest, ok = bytes.CutPrefix(behind, []byte(members[i+1]))
	}
	l.Record = bytes.TrimSuffix(rest, []byte{'}'})
	return l, ok && l.kind() == recordLine
}

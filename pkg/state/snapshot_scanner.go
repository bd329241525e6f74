package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
)

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

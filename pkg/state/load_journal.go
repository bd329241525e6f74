package state

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
)

// readHead returns after which transaction a journal starts.
func (r *recovery) readHead(file File, path string) (uint64, error) {
	lines, err := readLines(file)
	if err != nil {
		return 0, err
	}

	line, whole, err := lines.next()
	if err != nil {
		return 0, err
	}

	after, err := parseHead(line, whole, path)

	damage, ok := errors.AsType[*DamageError](err)
	if !ok {
		return after, err
	}

	if damage.hopeless {
		return 0, r.stop(damage)
	}

	err = r.damaged(damage)
	if err != nil {
		return 0, err
	}

	return r.guessHead(lines)
}

// guessHead finds out from the first transaction what a damaged head said.
func (r *recovery) guessHead(lines *lineReader) (uint64, error) {
	line, _, err := lines.next()
	if err != nil {
		return 0, err
	}

	var first journalLine

	readable := checkLine(line) == nil && json.Unmarshal(line, &first) == nil
	if readable && first.Sequence > 0 {
		return first.Sequence - 1, nil
	}

	return r.snapshot.sequence, nil
}

func parseHead(line []byte, whole bool, path string) (uint64, error) {
	damage := &DamageError{File: path, Line: 1, Reason: "the journal has no first line"}
	if !whole {
		return 0, damage
	}

	err := checkLine(line)
	if err != nil {
		damage.Reason = err.Error()

		return 0, damage
	}

	var head journalHeader

	err = json.Unmarshal(line, &head)

	switch {
	case err != nil || head.Format != journalFormat:
		damage.Reason = "the first line is not the head of a journal"
	case head.Version != formatVersion:
		damage.hopeless = true
		damage.Reason = fmt.Sprintf("version %d of the format is unknown to this program, which knows %d", head.Version, formatVersion)
	default:
		return head.After, nil
	}

	return 0, damage
}

// lineChunk is a run of journal lines.
type lineChunk struct {
	lines []parsedLine
	data  []byte
}

// parsedLine is one line of a journal, or a run of empty ones.
type parsedLine struct {
	number     int
	start, end int64
	// from and to are where the line is in the chunk's data.
	from, to int
	whole    bool

	// torn is why the line may be an interrupted write, or nil.
	torn error
	// damage says why it cannot be that.
	damage error
	// behind is a good line that follows on the same line as a bad one, since
	// the newline between them was damaged.
	behind  *journalLine
	entry   journalLine
	targets []collection
	values  []any
}

// readJournal applies the transactions of a journal behind the one with the
// number from. The head has been read and says after.
func (r *recovery) readJournal(ctx context.Context, file File, path string, after, from uint64) (journalScan, error) {
	loader := &journalLoader{recovery: r, from: from, scan: journalScan{path: path, after: after, last: after, closed: true, line: 1}}

	lines, err := readLines(file)
	if err != nil {
		return loader.scan, err
	}

	_, _, err = lines.next()
	if err != nil {
		return loader.scan, err
	}

	loader.scan.end = lines.offset

	readErr, applyErr := inOrder(ctx, runtime.GOMAXPROCS(0),
		func(emit func(*lineChunk) error) error { return emitLines(lines, emit) },
		loader.parse, loader.apply)

	loader.scan.size = lines.offset

	switch {
	case applyErr != nil:
		return loader.scan, applyErr
	case readErr != nil:
		return loader.scan, readErr
	}

	damage, err := checkTail(file, &loader.scan)
	if err == nil && damage != nil {
		err = r.stop(damage)
	}

	return loader.scan, err
}

// checkTail finds what no crash leaves behind the last good line. Before a line is
// written, newlines are durable up to preallocated(its end). So up to there, also
// of a line of which only a part was written, a crash leaves newlines and parts of
// lines, never zeros and no end of the file. Behind that it may have cut short the
// next preallocation.
func checkTail(file File, scan *journalScan) (*DamageError, error) {
	tail := make([]byte, scan.size-scan.end)

	_, err := file.ReadAt(tail, scan.end)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the journal: %w", err)
	}

	written := bytes.TrimRight(tail, "\n\x00")
	durable := preallocated(scan.end + int64(len(written)))

	damage := func(at int, reason string) *DamageError {
		return &DamageError{File: scan.path, Line: scan.line + 1 + bytes.Count(tail[:at], []byte{'\n'}), Reason: reason}
	}

	switch zero := bytes.IndexByte(tail, 0); {
	case zero >= 0 && scan.end+int64(zero) < durable:
		return damage(zero, fmt.Sprintf("byte %d of the file is zero, where lines or newlines were durable", scan.end+int64(zero))), nil
	case scan.size < durable:
		return damage(len(written), fmt.Sprintf("the file has %d bytes, of which %d were durable", scan.size, durable)), nil
	default:
		return nil, nil //nolint:nilnil // documented: no damage
	}
}

// errStopReading ends a scan whose damage has been reported.
var errStopReading = errors.New("nothing behind damage counts")

func emitLines(lines *lineReader, emit func(*lineChunk) error) error {
	chunk := &lineChunk{}

	for {
		start := lines.offset

		line, whole, err := lines.next()
		if err != nil {
			return err
		}

		if line == nil {
			return emit(chunk)
		}

		from := len(chunk.data)
		chunk.data = append(chunk.data, line...)
		chunk.lines = append(chunk.lines, parsedLine{
			number: lines.number, start: start, end: lines.offset, from: from, to: len(chunk.data), whole: whole,
		})

		// The rest of a journal is newlines: the first stands for all.
		if from == len(chunk.data) {
			lines.skipEmpty()
		}

		if len(chunk.data) < chunkBytes {
			continue
		}

		err = emit(chunk)
		if err != nil {
			return err
		}

		chunk = &lineChunk{}
	}
}

type journalLoader struct {
	*recovery

	from uint64
	scan journalScan
}

func (l *journalLoader) parse(chunk *lineChunk) {
	for i := range chunk.lines {
		line := &chunk.lines[i]
		l.parseLine(line, chunk.data[line.from:line.to])
	}

	chunk.data = nil
}

var (
	errEmpty   = errors.New("the line is empty where a transaction was to be")
	errCutLine = errors.New("the file ends within the line")
)

func (l *journalLoader) parseLine(line *parsedLine, text []byte) {
	line.torn = line.check(text)
	if line.torn != nil {
		// An interrupted write leaves a part of an object, never a whole
		// one.
		if errors.Is(line.torn, errChecksum) && json.Valid(text) {
			line.damage = line.torn
		}

		if line.whole {
			line.behind = goodSuffix(text)
		}

		return
	}

	err := json.Unmarshal(text, &line.entry)
	entry := &line.entry

	switch {
	case err == nil && entry.Closed != nil:
	case err != nil || entry.Sequence == 0 || entry.Batch == 0 || entry.Batch > entry.Sequence:
		line.damage = errShape
	case entry.Sequence > l.from:
		line.damage = l.decodeChanges(line)
	}
}

func (line *parsedLine) check(text []byte) error {
	switch {
	case len(text) == 0:
		return errEmpty
	case !line.whole:
		return errCutLine
	default:
		return checkLine(text)
	}
}

// goodSuffix returns the good line that a bad one ends with, nil if there is none.
func goodSuffix(text []byte) *journalLine {
	start := bytes.LastIndex(text, []byte(checksumOpen))
	if start <= 0 || checkLine(text[start:]) != nil {
		return nil
	}

	var behind journalLine
	if json.Unmarshal(text[start:], &behind) != nil {
		return nil
	}

	return &behind
}

func (l *journalLoader) decodeChanges(line *parsedLine) error {
	line.targets = make([]collection, len(line.entry.Changes))
	line.values = make([]any, len(line.entry.Changes))

	for i, each := range line.entry.Changes {
		target := l.find(each.Collection)
		if target == nil {
			return fmt.Errorf("collection %q is %w%s", each.Collection, errUnknown, whoKnows)
		}

		line.targets[i] = target

		var err error

		switch each.Operation {
		case operationPut:
			line.values[i], err = target.decode(each.Record)
		case operationDel:
		default:
			err = fmt.Errorf("operation %q is %w", each.Operation, errUnknown)
		}

		if err != nil {
			return err
		}

		line.entry.Changes[i].Record = nil
	}

	return nil
}

var errUnknown = errors.New("unknown to this program")

// whoKnows keeps people from repairing what is not damaged.
const whoKnows = "; if one of another mode, or a newer one, has written it, nothing is damaged: use that one, or another state-dir"

func (l *journalLoader) apply(chunk *lineChunk) error {
	for i := range chunk.lines {
		damage := l.applyLine(&chunk.lines[i])
		if damage == nil {
			continue
		}

		return l.stop(damage)
	}

	return nil
}

// applyLine decides what a line means. The last lines of a journal may be those
// of an interrupted write, whose sectors reached the disk in any order: these
// transactions were not acknowledged. It is known from a line
// behind a bad one which was written when the bad one was already durable that
// the bad one is not of that kind.
func (l *journalLoader) applyLine(line *parsedLine) *DamageError {
	scan := &l.scan

	switch {
	case line.damage != nil:
		return l.here(line, line.damage)
	case line.torn != nil:
		if scan.torn == nil {
			scan.torn = l.here(line, line.torn)
		}

		scan.remnant = scan.remnant || line.from < line.to

		if line.behind != nil && line.behind.durableBefore() > scan.last {
			return scan.torn
		}
	case scan.torn != nil:
		scan.remnant = true

		if line.entry.durableBefore() > scan.last {
			return scan.torn
		}
	case line.entry.Closed != nil:
		return l.applyClosed(line)
	default:
		return l.applyTransaction(line)
	}

	return nil
}

func (l *journalLoader) here(line *parsedLine, reason error) *DamageError {
	return &DamageError{File: l.scan.path, Line: line.number, Reason: reason.Error()}
}

func (l *journalLoader) applyClosed(line *parsedLine) *DamageError {
	if *line.entry.Closed != l.scan.last {
		return l.here(line, fmt.Errorf("closing after transaction %d %w %d", *line.entry.Closed, errGap, l.scan.last))
	}

	l.scan.end, l.scan.line, l.scan.closed = line.end, line.number, true

	return nil
}

func (l *journalLoader) applyTransaction(line *parsedLine) *DamageError {
	if line.entry.Sequence != l.scan.last+1 {
		return l.here(line, fmt.Errorf("transaction %d %w %d", line.entry.Sequence, errGap, l.scan.last))
	}

	if line.entry.Sequence > l.from {
		for i, each := range line.entry.Changes {
			if each.Operation == operationDel {
				line.targets[i].recoverDeleted(each.Key)

				continue
			}

			err := line.targets[i].recover(each.Key, line.values[i])
			if err != nil {
				return l.here(line, err)
			}
		}
	}

	l.scan.last = line.entry.Sequence
	l.scan.end, l.scan.line, l.scan.closed = line.end, line.number, false

	return nil
}

var errGap = errors.New("follows")

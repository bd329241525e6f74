package state

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"
)

// chunkBytes is about how much of the journal one worker decodes at a time.
const chunkBytes = 128 << 10

// loader reads the journal into collections and changes nothing else, so that Open, Verify and
// Dump see the same. Lines are decoded in parallel and applied in order.
type loader struct {
	path string
	// writer has the collections, and checks for records that contradict others.
	writer *writer
	// texts has the JSON of the records of each collection by their keys; nil if it is not needed.
	texts map[string]map[string]json.RawMessage
	// damaged receives damage and returns the error to stop with; nil continues if that is
	// possible.
	damaged func(damage *DamageError) error

	// at is what has been read so far, and base the part of it before the first change.
	at   position
	base base
	// last is the last change of a whole transaction, and end is behind its line. closed means that
	// the journal was closed after it.
	last   uint64
	end    position
	closed bool
	// begun are the lines of a transaction whose last line has not been read.
	begun []parsedLine
	// torn is the first line that may be an interrupted write. remnant means that there is more
	// than newlines behind end.
	torn    *DamageError
	remnant bool
	// named are the collections that the journal names.
	named map[string]bool
	// refused are the newest records that are left out because they cannot be used.
	refused map[recordKey]*DamageError
}

// position is a number of lines at the beginning of the journal, and their size in bytes.
type position struct {
	lines int
	size  int64
}

// base is the part of the journal before the changes: a header and the records that it announces.
type base struct {
	// headed means that the header has been read, which says how many records are expected; records of
	// them have been read. size is where the base ends.
	headed            bool
	expected, records int
	size              int64
	// newest is the key of the last record, behind its collection.
	newest [2]string
}

// errStop ends reading after damage that has been reported.
var errStop = errors.New("no line behind damage counts")

// openJournal opens the journal so that what is read is what the disk has. After a failed fsync
// the page cache may have lines that never reached it, and after a kill lines that have not yet. The
// same is true of the journal's name, which an earlier start or repair may have failed to sync.
func openJournal(files FS, path string) (File, error) {
	file, err := files.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrPermission) {
		// Verify may be run by a user who can only read.
		file, err = files.OpenFile(path, os.O_RDONLY, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	if err := errors.Join(file.Sync(), files.SyncDir(filepath.Dir(path)), file.Forget()); err != nil {
		return nil, errors.Join(fmt.Errorf("read the journal %s: %w", path, err), file.Close())
	}
	return file, nil
}

// read reads the whole journal, as far as damage allows. All changes up to mark were durable.
func (l *loader) read(ctx context.Context, file File, mark uint64) error {
	err := l.readLines(ctx, file)
	if err == nil {
		err = l.checkEnd(file, mark)
	}
	if err == nil || errors.Is(err, errStop) {
		err = l.checkRecords(file)
	}
	return err
}

// readLines parses the chunks of the journal in parallel and applies them in order. The number of chunks in
// memory is bounded.
func (l *loader) readLines(ctx context.Context, file File) error {
	applying, ctx := errgroup.WithContext(ctx)
	ordered := make(chan *chunk, runtime.GOMAXPROCS(0))
	applying.Go(func() error {
		for c := range ordered {
			<-c.parsed
			if err := l.apply(c); err != nil {
				return err
			}
		}
		return nil
	})
	var parsing sync.WaitGroup
	err := readChunks(file, func(c *chunk) error {
		select {
		case ordered <- c:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		parsing.Go(func() {
			l.parse(c)
			close(c.parsed)
		})
		return nil
	})
	close(ordered)
	parsing.Wait()
	return cmp.Or(applying.Wait(), err)
}

// chunk is a part of the journal that ends with a line.
type chunk struct {
	text  []byte
	lines []parsedLine
	// parsed is closed when lines are those of the text.
	parsed chan struct{}
}

// chunks has chunks to use again: with new ones, a start would make more garbage than records.
var chunks = sync.Pool{New: func() any { return &chunk{} }}

func newChunk(text []byte) *chunk {
	c := chunks.Get().(*chunk) //nolint:forcetypeassert // the pool has nothing else
	c.text, c.parsed = append(c.text[:0], text...), make(chan struct{})
	return c
}

func (c *chunk) free() {
	clear(c.lines)
	c.lines = c.lines[:0]
	chunks.Put(c)
}

func readChunks(file File, emit func(*chunk) error) error {
	c := newChunk(nil)
	for offset := int64(0); ; {
		start := len(c.text)
		c.text = slices.Grow(c.text, chunkBytes)[:start+chunkBytes]
		n, err := file.ReadAt(c.text[start:], offset)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read the journal: %w", err)
		}
		offset += int64(n)
		c.text = c.text[:start+n]
		if err != nil {
			return emit(c)
		}
		end := bytes.LastIndexByte(c.text, '\n') + 1
		next := newChunk(c.text[end:])
		c.text = c.text[:end]
		if err := emit(c); err != nil {
			return err
		}
		c = next
	}
}

// parsedLine is a line, or a run of empty ones.
type parsedLine struct {
	line

	lines, size int
	// number is that of the first line in the file.
	number int
	// kind is invalidLine if the line is not readable, whatever its checksum.
	kind kind
	// torn is why the line may be an interrupted write, damage why it cannot be that.
	torn, damage error
	// behind is a good line that follows a bad one, without the newline between them.
	behind *line
	target collection
	// value is the decoded record of a line that does not delete it. unusable is why it cannot be
	// used, although the line is readable.
	value    any
	deleting bool
	unusable error
}

var (
	errEmpty   = errors.New("the line is empty where a change was expected")
	errCutLine = errors.New("the file ends within the line")
	errUTF8    = errors.New("the line is not valid UTF-8")
	errUnknown = errors.New("unknown to this program; if one of another mode, or a newer one, has written it, " +
		"nothing is damaged: use that one, or another state-dir")
)

// parse decodes the lines of a chunk. A journal ends with many empty lines.
func (l *loader) parse(c *chunk) {
	for rest := c.text; len(rest) > 0; {
		p := parsedLine{lines: 1}
		if blank := len(rest) - len(bytes.TrimLeft(rest, "\n")); blank > 0 {
			p.lines, p.size, p.torn = blank, blank, errEmpty
			rest = rest[blank:]
		} else {
			text, after, whole := bytes.Cut(rest, []byte{'\n'})
			p.size = len(rest) - len(after)
			l.parseLine(&p, text, whole)
			rest = after
		}
		c.lines = append(c.lines, p)
	}
}

func (l *loader) parseLine(p *parsedLine, text []byte, whole bool) {
	p.torn = checkLine(text)
	if !whole {
		p.torn = errCutLine
	}
	var err error
	p.line, err = parseLine(text)
	kind := p.line.kind()
	if err == nil && (kind == recordLine || kind == changeLine) {
		p.unusable = l.decodeRecord(p)
		if p.torn != nil && p.unusable != nil && !json.Valid(text) {
			err = p.unusable
		}
	}
	if err == nil {
		p.kind = kind
	}
	switch {
	case p.torn == nil:
		p.damage = err
	case errors.Is(p.torn, errChecksum) && json.Valid(text):
		// An interrupted write leaves a part of an object, never a whole one.
		p.damage = p.torn
	case whole:
		p.behind = goodSuffix(text)
	}
}

// decodeRecord returns why the record of the line cannot be used.
func (l *loader) decodeRecord(p *parsedLine) error {
	record := p.Record
	// The memory of the line is used again.
	p.target, p.deleting, p.Record = l.writer.collections[p.Collection], p.deletes(), nil
	if l.texts != nil {
		p.Record = bytes.Clone(record)
	}
	switch {
	case p.deleting:
		return nil
	case p.target == nil:
		return fmt.Errorf("collection %q is %w", p.Collection, errUnknown)
	case !utf8.ValidString(p.Key) || !utf8.Valid(record):
		return errUTF8
	}
	var err error
	p.value, err = p.target.decode(p.Key, record)
	return err
}

// goodSuffix returns the good line that a bad one ends with, nil if there is none.
func goodSuffix(text []byte) *line {
	start := bytes.LastIndex(text, []byte(checksumOpen))
	if start <= 0 || checkLine(text[start:]) != nil {
		return nil
	}
	behind, err := parseLine(text[start:])
	if err != nil {
		return nil
	}
	return &behind
}

// damage describes what is wrong with the line that was read last.
func (l *loader) damage(p *parsedLine, fix string, reason error) *DamageError {
	return &DamageError{File: l.path, Line: p.number, Reason: reason.Error(), Fix: fix}
}

// drop is damage of a line that Repair drops, with all that follow.
func (l *loader) drop(p *parsedLine, reason error) *DamageError {
	return l.damage(p, fmt.Sprintf(fixDrop, l.last), reason)
}

// stop reports damage behind which no line counts.
func (l *loader) stop(damage *DamageError) error {
	return cmp.Or(l.damaged(damage), errStop)
}

func (l *loader) apply(c *chunk) error {
	defer c.free()
	for i := range c.lines {
		p := &c.lines[i]
		p.number = l.at.lines + 1
		l.at.lines += p.lines
		l.at.size += int64(p.size)
		var err error
		switch {
		case !l.base.headed:
			err = l.applyHeader(p)
		case l.base.records < l.base.expected || p.kind == recordLine:
			err = l.applyRecord(p)
		default:
			err = l.applyChange(p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *loader) applyHeader(p *parsedLine) error {
	l.base.headed, l.last = true, p.Sequence
	l.named, l.refused = map[string]bool{}, map[recordKey]*DamageError{}
	for name, count := range p.Collections {
		l.named[name] = true
		l.base.expected += count
	}
	l.finish(true)
	l.base.size = l.end.size
	switch {
	case p.kind != headerLine:
		return l.stop(l.damage(p, "", fmt.Errorf("the first line is not the header of a journal: %w", cmp.Or(p.torn, p.damage, errForm))))
	case p.Format != journalFormat || p.Version != formatVersion:
		return l.stop(l.damage(p, "", fmt.Errorf("version %d of the format %q is %w; it knows %d of %q",
			p.Version, p.Format, errUnknown, formatVersion, journalFormat)))
	case p.torn != nil:
		return l.damaged(l.damage(p, fixKeep, p.torn))
	default:
		return nil
	}
}

var (
	errOrder   = errors.New("keys are not in order, or one is there twice")
	errRecords = errors.New("the number of records differs from the header's")
)

// applyRecord applies a line of the base. All of them were durable before the file got its name, so
// none can be an interrupted write. When reading goes on after damage, a record counts as it reads.
func (l *loader) applyRecord(p *parsedLine) error {
	reason := cmp.Or(p.torn, p.damage)
	if p.kind != recordLine && (reason == nil || errors.Is(reason, errEmpty)) {
		reason = fmt.Errorf("%w: %d of %d precede this line", errRecords, l.base.records, l.base.expected)
		if err := l.damaged(l.damage(p, fixKeep, reason)); err != nil {
			return err
		}
		l.base.expected = l.base.records
		return l.applyChange(p)
	}
	fix := ""
	if p.kind == recordLine {
		fix = fixKeep
		key := [2]string{p.Collection, p.Key}
		reason = cmp.Or(reason, l.checkPlace(key))
		l.base.newest = key
		l.applyToRecord(p)
	}
	l.base.records++
	l.finish(true)
	l.base.size = l.end.size
	if reason != nil {
		return l.damaged(l.damage(p, fix, reason))
	}
	return nil
}

func (l *loader) checkPlace(key [2]string) error {
	switch {
	case slices.Compare(key[:], l.base.newest[:]) <= 0:
		return errOrder
	case l.base.records >= l.base.expected:
		return fmt.Errorf("%w: it is behind the last of %d", errRecords, l.base.expected)
	default:
		return nil
	}
}

// applyChange applies a line behind the base. The last lines of a journal may be an interrupted
// write, whose sectors reached the disk in any order: these changes were not acknowledged. A line
// that was written when a bad line before it was already durable shows that this one is damage.
func (l *loader) applyChange(p *parsedLine) error {
	switch {
	case p.damage != nil:
		return l.stop(l.drop(p, p.damage))
	case p.torn != nil:
		if l.torn == nil {
			l.torn = l.drop(p, p.torn)
		}
		l.remnant = l.remnant || !errors.Is(p.torn, errEmpty) || len(l.begun) > 0
		if p.behind != nil && p.behind.durableBefore() > l.last {
			return l.stop(l.torn)
		}
		return nil
	case l.torn != nil:
		l.remnant = true
		if p.durableBefore() > l.last {
			return l.stop(l.torn)
		}
		return nil
	}
	if err := l.applyGood(p); err != nil {
		return l.stop(l.drop(p, err))
	}
	return nil
}

// applyGood applies a line whose checksum is right. The changes of a transaction are applied with
// its last line.
func (l *loader) applyGood(p *parsedLine) error {
	switch previous := l.last + uint64(len(l.begun)); {
	case p.kind == closedLine && *p.Closed == previous && len(l.begun) == 0:
		l.finish(true)
		return nil
	case p.kind == closedLine:
		return fmt.Errorf("closing after change %d %w %d", *p.Closed, errGap, previous)
	case p.kind != changeLine:
		return errForm
	case p.Sequence != previous+1:
		return fmt.Errorf("change %d %w %d", p.Sequence, errGap, previous)
	}
	l.begun = append(l.begun, *p)
	if p.More {
		return nil
	}
	for i := range l.begun {
		l.applyToRecord(&l.begun[i])
	}
	l.begun = l.begun[:0]
	l.last = p.Sequence
	l.finish(false)
	return nil
}

var errGap = errors.New("follows")

// finish notes that all lines so far are whole.
func (l *loader) finish(closed bool) {
	l.end, l.closed = l.at, closed
}

package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
)

// chunkBytes is about how much of a file one worker decodes at a time.
const chunkBytes = 128 << 10

// recordChunk is a run of record lines of one collection.
type recordChunk struct {
	target collection
	// name is the collection's.
	name string
	// line is the number of the first.
	line    int
	data    []byte
	records []decodedRecord
	damage  []*DamageError
}

type decodedRecord struct {
	line  int
	key   string
	value any
}

func (r *recovery) readSnapshot(ctx context.Context) error {
	if r.lenient {
		return r.readLeniently()
	}

	path := r.path(snapshotName)

	file, err := r.files.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("read the snapshot: %w", err)
	}

	defer file.Close()

	lines, err := readLines(file)
	if err != nil {
		return err
	}

	scanner := &snapshotScanner{path: path, lines: lines}
	loader := &snapshotLoader{recovery: r, path: path, free: make(chan []byte, 4*runtime.GOMAXPROCS(0))}

	readErr, applyErr := inOrder(ctx, runtime.GOMAXPROCS(0),
		func(emit func(*recordChunk) error) error { return loader.scan(scanner, emit) },
		loader.decode, loader.apply)
	if applyErr != nil {
		return applyErr
	}

	r.snapshot.sequence = scanner.sequence
	r.snapshot.bytes = lines.offset

	damage, ok := errors.AsType[*DamageError](readErr)

	switch {
	case !ok:
		return readErr
	case !scanner.headed:
		return r.stop(damage)
	default:
		return r.damaged(damage)
	}
}

type snapshotLoader struct {
	*recovery

	path string
	// free holds buffers of chunks for reuse.
	free chan []byte
	// of and last are the collection and the key that were applied last.
	of, last string
}

func (l *snapshotLoader) scan(scanner *snapshotScanner, emit func(*recordChunk) error) error {
	err := scanner.head()
	if err != nil {
		return err
	}

	var chunk *recordChunk

	flush := func() error {
		if chunk == nil || len(chunk.data) == 0 {
			return nil
		}

		full := chunk
		chunk = &recordChunk{target: full.target, name: full.name, data: l.buffer()}

		return emit(full)
	}

	err = scanner.collections(func(name string) error {
		err := flush()
		if err != nil {
			return err
		}

		chunk = &recordChunk{target: l.find(name), name: name, data: l.buffer()}

		return nil
	}, func(line []byte, number int) error {
		// An empty collection may be one that a newer program has.
		if chunk.target == nil {
			return scanner.damage("collection %q is %s%s", chunk.name, errUnknown, whoKnows)
		}

		if len(chunk.data) == 0 {
			chunk.line = number
		}

		chunk.data = append(append(chunk.data, line...), '\n')
		if len(chunk.data) < chunkBytes {
			return nil
		}

		return flush()
	})

	if err == nil {
		err = scanner.tail()
	}

	// What was read before damage may be damaged as well, and comes first.
	return errors.Join(err, flush())
}

func (l *snapshotLoader) buffer() []byte {
	select {
	case data := <-l.free:
		return data[:0]
	default:
		return make([]byte, 0, chunkBytes+chunkBytes/8)
	}
}

func (l *snapshotLoader) decode(chunk *recordChunk) {
	number := chunk.line

	for line := range bytes.SplitSeq(bytes.TrimSuffix(chunk.data, []byte{'\n'}), []byte{'\n'}) {
		key, encoded, err := parseRecordLine(line)

		var value any
		if err == nil {
			value, err = chunk.target.decode(encoded)
		}

		if err != nil {
			chunk.damage = append(chunk.damage, &DamageError{File: l.path, Line: number, Reason: err.Error()})
		} else {
			chunk.records = append(chunk.records, decodedRecord{line: number, key: key, value: value})
		}

		number++
	}

	select {
	case l.free <- chunk.data:
	default:
	}

	chunk.data = nil
}

func (l *snapshotLoader) apply(chunk *recordChunk) error {
	for _, damage := range chunk.damage {
		err := l.damaged(damage)
		if err != nil {
			return err
		}
	}

	if l.of != chunk.name {
		l.of, l.last = chunk.name, ""
	}

	for _, record := range chunk.records {
		var err error
		if record.key <= l.last {
			err = errOrder
		} else {
			err = chunk.target.recover(record.key, record.value)
		}

		l.last = record.key

		if err != nil {
			err = l.damaged(&DamageError{File: l.path, Line: record.line, Reason: err.Error()})
		}

		if err != nil {
			return err
		}
	}

	return nil
}

var errOrder = errors.New("keys are not in order, or one is there twice")

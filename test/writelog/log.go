package writelog

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"

	"golang.org/x/sys/unix"
)

// blockBytes is what a disk writes as a whole.
const blockBytes = 4096

// Log is a log that is complete.
type Log struct {
	file    *os.File
	entries []Entry
	// data are the offsets in file at which the data of entries begin.
	data []int64
}

// Open reads the entries of the log at path, but not their data.
func Open(path string) (*Log, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open log of writes: %w", err)
	}

	l := &Log{file: file}
	if err := l.index(); err != nil {
		return nil, errors.Join(fmt.Errorf("read log of writes %s: %w", path, err), file.Close())
	}

	return l, nil
}

func (l *Log) index() error {
	reader, header, at := bufio.NewReader(l.file), make([]byte, headerBytes), int64(0)

	for {
		_, err := io.ReadFull(reader, header)
		if errors.Is(err, io.EOF) {
			return nil
		}

		if err != nil {
			return err
		}

		at += headerBytes
		entry := Entry{
			Kind:   Kind(binary.LittleEndian.Uint32(header)),
			Offset: int64(binary.LittleEndian.Uint64(header[4:])),
			Length: int64(binary.LittleEndian.Uint64(header[12:])),
		}
		l.entries, l.data = append(l.entries, entry), append(l.data, at)

		if entry.Kind == Write {
			if _, err := reader.Discard(int(entry.Length)); err != nil {
				return err
			}

			at += entry.Length
		}
	}
}

// Close closes the log.
func (l *Log) Close() error { return l.file.Close() }

// Len returns the number of entries, which is the last point.
func (l *Log) Len() int { return len(l.entries) }

// Entries returns the entries, which the caller must not change.
func (l *Log) Entries() []Entry { return l.entries }

// Durable returns the number of entries that the last flush before the point covers.
func (l *Log) Durable(point int) int {
	for ; point > 0; point-- {
		if l.entries[point-1].Kind == Flush {
			return point
		}
	}

	return 0
}

// Apply makes the changes of the entries from up to, and without, to.
func (l *Log) Apply(disk *os.File, from, to int) error {
	for i := from; i < to; i++ {
		if err := l.apply(disk, i, 0, l.entries[i].Length); err != nil {
			return err
		}
	}

	return nil
}

// ApplySome makes the changes of a random part of these entries: each with the given
// probability, and a quarter of those without a random part of their blocks.
func (l *Log) ApplySome(disk *os.File, from, to int, random *rand.Rand, probability float64) error {
	for i := from; i < to; i++ {
		if random.Float64() >= probability {
			continue
		}

		torn := random.IntN(4) == 0

		for at := int64(0); at < l.entries[i].Length; at += blockBytes {
			length := min(blockBytes, l.entries[i].Length-at)
			if !torn {
				length = l.entries[i].Length - at
			}

			if !torn || random.IntN(2) == 0 {
				if err := l.apply(disk, i, at, length); err != nil {
					return err
				}
			}

			if !torn {
				break
			}
		}
	}

	return nil
}

// apply makes the change of the length bytes of an entry that begin at offset at of it.
func (l *Log) apply(disk *os.File, entry int, at, length int64) error {
	var err error

	offset := l.entries[entry].Offset + at

	switch l.entries[entry].Kind {
	case Flush:
	case Zero:
		err = unix.Fallocate(int(disk.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, length)
	case Write:
		_, err = io.Copy(io.NewOffsetWriter(disk, offset), io.NewSectionReader(l.file, l.data[entry]+at, length))
	default:
		err = fmt.Errorf("kind %d", l.entries[entry].Kind)
	}

	if err != nil {
		return fmt.Errorf("replay entry %d: %w", entry, err)
	}

	return nil
}

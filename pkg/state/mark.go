package state

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
)

// The mark is one line in a file of its own: the number of a transaction that is
// durable. It is written after each fdatasync of the journal and not synced, but at
// a clean end: it survives a kill with the number of the last acknowledged
// transaction, and a loss of power with an older one. A journal that ends before it
// is damaged, in whatever way that happened.

// markBytes bounds what is read of the mark's file.
const markBytes = 4096

type markLine struct {
	Durable uint64 `json:"durable"`
}

func appendMark(to []byte, durable uint64) []byte {
	start := len(to)
	to = appendChecksumRoom(to)
	to = append(to, `"durable":`...)
	to = strconv.AppendUint(to, durable, 10)
	to = append(to, '}')
	setChecksum(to[start:])

	return append(to, '\n')
}

// writeMark records what is durable. Errors are ignored: an older mark is valid, too.
func (s *Store) writeMark() {
	s.markLine = appendMark(s.markLine[:0], s.durable)
	_ = writeAll(s.mark, s.markLine, 0)
}

// closeMark records a clean end. synced is false if the mark need not be durable.
func (s *Store) closeMark(synced bool) error {
	var err error

	if synced {
		s.writeMark()
		err = s.mark.Sync()
	}

	return errors.Join(err, s.mark.Close())
}

// readMark returns 0 if there is no mark: the file is missing, or it is empty after a power
// failure.
func readMark(files FS, path string) (uint64, error) {
	file, err := files.OpenFile(path, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}

	if err != nil {
		return 0, fmt.Errorf("read the mark of the journal: %w", err)
	}

	defer file.Close()

	lines := &lineReader{in: bufio.NewReader(io.NewSectionReader(file, 0, markBytes))}

	line, whole, err := lines.next()
	if err != nil {
		return 0, fmt.Errorf("read the mark of the journal: %w", err)
	}

	var mark markLine

	if !whole || checkLine(line) != nil || json.Unmarshal(line, &mark) != nil {
		return 0, nil
	}

	return mark.Durable, nil
}

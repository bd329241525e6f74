package state

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// checkEnd finds what is missing at the end of the journal.
func (l *loader) checkEnd(file File, mark uint64) error {
	if !l.base.headed || l.base.records < l.base.expected {
		return l.stop(&DamageError{
			File: l.path, Line: l.at.lines + 1,
			Reason: fmt.Sprintf("the file ends after %d of %d records of the base", l.base.records, l.base.expected),
		})
	}
	damage, err := l.checkTail(file)
	if err != nil {
		return err
	}
	if damage == nil && l.last < mark {
		damage = &DamageError{
			File: l.path, Line: l.end.lines + 1, Fix: fmt.Sprintf(fixDrop, l.last),
			Reason: fmt.Sprintf("changes up to %d were durable, as %s says, and the journal ends at %d", mark, markName, l.last),
		}
		if l.torn != nil {
			damage.Reason += ": " + l.torn.Reason
		}
	}
	if damage != nil {
		return l.stop(damage)
	}
	return nil
}

// checkTail finds what no crash leaves behind the last good line. Before a line is written,
// newlines are durable up to preallocated(its end). So up to there, also of a line of which only a
// part was written, a crash leaves newlines and parts of lines, never zeros and no end of the file.
// Behind that it may have cut short the next preallocation.
func (l *loader) checkTail(file File) (*DamageError, error) {
	tail := make([]byte, l.at.size-l.end.size)
	_, err := file.ReadAt(tail, l.end.size)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	written := bytes.TrimRight(tail, "\n\x00")
	durable := preallocated(l.end.size + int64(len(written)))
	at := bytes.IndexByte(tail, 0)
	var reason string
	switch {
	case at >= 0 && l.end.size+int64(at) < durable:
		reason = fmt.Sprintf("byte %d of the file is zero, where lines or newlines were durable", l.end.size+int64(at))
	case l.at.size < durable:
		at = len(written)
		reason = fmt.Sprintf("the file has %d bytes, of which %d were durable", l.at.size, durable)
	default:
		return nil, nil //nolint:nilnil // documented: no damage
	}
	return &DamageError{
		File: l.path, Line: l.end.lines + 1 + bytes.Count(tail[:at], []byte{'\n'}), Reason: reason, Fix: fmt.Sprintf(fixDrop, l.last),
	}, nil
}

package state

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

// journalChunk is the unit, in bytes, in which the journal is preallocated. Overwriting
// preallocated bytes changes neither size nor extents, so fdatasync is one write. They are
// newlines, not zeros or unwritten extents, so that jq can read the file at any time. Only tests
// change it: a start compares with it what is durable in a journal.
var journalChunk int64 = 256 << 10

// preallocated returns the size in bytes up to which the journal has durable newlines before a line
// that ends at end is written. It is always beyond end.
func preallocated(end int64) int64 { return (end/journalChunk + 1) * journalChunk }

// journal is the file that changes are appended to. The holder of the committer's token owns it.
type journal struct {
	file File
	// base is where the base ends, in bytes.
	base int64
	// end is where the next line goes.
	end int64
	// filled is up to where the file is durable, lines or newlines. It is at least
	// preallocated(end), but for a draft.
	filled int64
	// closed is true while nothing follows the line of a clean end, or the base.
	closed bool
	// unsynced is true while lines are written that are not durable.
	unsynced bool
}

// append writes lines, and makes them and all before them durable if sync is true. After an error that
// is not errNoSpace no further append is allowed; after errNoSpace none before wipe.
func (j *journal) append(lines []byte, sync bool) (err error) {
	defer errdefs.Wrapf(&err, "append to %s", journalName)
	if err := j.fill(j.end + int64(len(lines))); err != nil {
		return err
	}
	if err := writeAt(j.file, lines, j.end); err != nil {
		return err
	}
	if sync {
		if err := j.file.Sync(); err != nil {
			return err
		}
	}
	j.end += int64(len(lines))
	j.closed, j.unsynced = false, !sync
	return nil
}

// close marks a clean end, behind durable lines, and closes the file. last is the last change.
func (j *journal) close(last uint64, healthy bool) error {
	var err error
	if healthy && j.unsynced {
		err = j.file.Sync()
	}
	if healthy && err == nil && !j.closed {
		err = j.append(appendLine(nil, `"closed":%d`, last), true)
	}
	return errors.Join(err, j.file.Close())
}

// fill preallocates the journal for a line that ends at end. The newlines are synced before a line
// overwrites any of them, so that a start can distinguish an interrupted write from damage; see
// checkTail.
func (j *journal) fill(end int64) error {
	if end < j.filled {
		return nil
	}
	filled := preallocated(end)
	if err := writeAt(j.file, bytes.Repeat([]byte{'\n'}, int(filled-j.filled)), j.filled); err != nil {
		return err
	}
	if err := j.file.Sync(); err != nil {
		return fmt.Errorf("preallocate: %w", err)
	}
	j.filled = filled
	return nil
}

// wipe overwrites what follows the last line with newlines. It does not shorten the
// preallocated part: a crash could leave the file too short.
func (j *journal) wipe() error {
	if err := writeAt(j.file, bytes.Repeat([]byte{'\n'}, int(j.filled-j.end)), j.end); err != nil {
		return err
	}
	return j.file.Truncate(j.filled)
}

// regainSpace overwrites what follows the last line, durably also if the space does not suffice to fill the
// preallocated part again: a power failure must not bring back a change that has failed.
func (j *journal) regainSpace() error {
	if err := j.wipe(); err != nil {
		return err
	}
	if err := j.file.Sync(); err != nil {
		return err
	}
	return j.fill(j.filled)
}

// errNoSpace marks a write, not a sync, that failed for lack of space: what was durable before
// still is, and a later write may succeed.
var errNoSpace = errors.New("no space")

func isNoSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

func writeAt(file File, data []byte, offset int64) error {
	_, err := file.WriteAt(data, offset)
	if isNoSpace(err) {
		return fmt.Errorf("%w: write: %w", errNoSpace, err)
	}
	return err
}

// version is a collection of any type at one point in time.
type version struct {
	name    string
	count   int
	records iter.Seq2[string, any]
}

// draftSyncBytes is how much of a draft may wait in the page cache: a large flush would delay the
// fdatasync of the journal.
const draftSyncBytes = 4 << 20

// draftJournal writes a journal under a temporary name: a header and a base with all records as
// they are after the change of that number. It has no preallocated part yet. Records are read and
// encoded one by one, and ctx is asked now and then, since there may be many.
func draftJournal(ctx context.Context, files FS, dir string, sequence uint64, all []version) (_ *journal, err error) {
	defer errdefs.Wrapf(&err, "write a new journal")
	file, err := files.OpenFile(filepath.Join(dir, draftName), os.O_RDWR|os.O_CREATE|os.O_TRUNC, fileMode)
	if err != nil {
		return nil, err
	}
	j := &journal{file: file, closed: true}
	if err := j.writeBase(ctx, sequence, all); err != nil {
		return nil, errors.Join(err, j.discard(files, dir))
	}
	return j, nil
}

func (j *journal) writeBase(ctx context.Context, sequence uint64, all []version) error {
	counts := map[string]int{}
	for _, each := range all {
		counts[each.name] = each.count
	}
	out := bufio.NewWriterSize(io.NewOffsetWriter(j.file, 0), chunkBytes)
	line := appendHeader(nil, sequence, counts)
	synced := int64(0)

	// One buffer for all records: with many of them, their encodings would be most of the garbage.
	var record bytes.Buffer

	encoder := json.NewEncoder(&record)
	for _, each := range all {
		for key, value := range each.records {
			record.Reset()
			if err := encoder.Encode(value); err != nil {
				return fmt.Errorf("%s %q: %w", each.name, key, err)
			}
			line = appendRecord(line, each.name, key, bytes.TrimSuffix(record.Bytes(), []byte{'\n'}))
			j.end += int64(len(line))
			_, err := out.Write(line)
			line = line[:0]
			if err == nil && j.end-synced >= draftSyncBytes {
				synced = j.end
				err = errors.Join(ctx.Err(), out.Flush(), j.file.Sync())
			}
			if err != nil {
				return err
			}
		}
	}
	_, err := out.Write(line) // of a base without records
	j.end += int64(len(line))
	j.base, j.filled = j.end, j.end
	return errors.Join(err, out.Flush(), j.file.Sync())
}

// copyFrom appends a part of another journal to a draft, without a sync.
func (j *journal) copyFrom(other *journal, from, to int64) error {
	_, err := io.Copy(io.NewOffsetWriter(j.file, j.end), io.NewSectionReader(other.file, from, to-from))
	j.end += to - from
	j.filled = j.end
	return err
}

// errUnknownName means that the draft or the journal before it may have the journal's name after a
// power failure.
var errUnknownName = errors.New("which journal has the name is unknown")

// install makes the draft durable, with its preallocated part, and gives it the journal's name.
func (j *journal) install(files FS, dir string) error {
	if err := j.fill(j.end); err != nil {
		return err
	}
	err := files.Rename(filepath.Join(dir, draftName), filepath.Join(dir, journalName))
	if isNoSpace(err) {
		return err
	}
	if err == nil {
		err = files.SyncDir(dir)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errUnknownName, err)
	}
	return nil
}

// discard closes and removes a draft.
func (j *journal) discard(files FS, dir string) error {
	return errors.Join(j.file.Close(), removeIfExists(files, filepath.Join(dir, draftName)))
}

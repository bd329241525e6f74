package state

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// recovery reads a state directory. It changes nothing but the collections that
// it is given, so that Open, Verify and Dump see the same.
type recovery struct {
	dir   string
	files FS
	// find returns nil for an unregistered collection. It is called
	// by several goroutines at once.
	find func(name string) collection
	// damaged receives damage and returns the error to stop with; nil continues
	// as far as possible.
	damaged func(damage *DamageError) error

	// lenient reads the snapshot as any program reads JSON, without asking
	// whether it is what was written.
	lenient bool

	// What was found.
	present map[string]bool
	// mark is a transaction that was durable, 0 if none is known.
	mark uint64
	// current is the file that is the journal, and switching is true if it has
	// not got its name yet.
	current   string
	switching bool
	snapshot  struct {
		sequence uint64
		bytes    int64
	}
	// needsPrevious is true when journal.previous.jsonl holds transactions that
	// the snapshot lacks.
	needsPrevious bool
	previous      journalScan
	journal       journalScan
}

// journalScan is what was found in one journal.
type journalScan struct {
	path string
	// after and last are sequence numbers: before the first transaction, and of
	// the last good one.
	after, last uint64
	// end is behind the last good line, size behind the last byte.
	end, size int64
	// line is the number of the last good line.
	line int
	// closed is true if the last good line is the head or that of a clean end.
	closed bool
	// torn is the first line behind the last good one, nil if there is none.
	torn *DamageError
	// remnant is true when what lies there is not just empty lines.
	remnant bool
}

func (r *recovery) path(name string) string { return filepath.Join(r.dir, name) }

func (r *recovery) look() error {
	r.present = map[string]bool{}

	for _, name := range []string{snapshotName, journalName, previousName, snapshotDraft, journalDraft} {
		there, err := exists(r.files, r.path(name))
		if err != nil {
			return err
		}

		r.present[name] = there
	}

	var err error

	r.mark, err = readMark(r.files, r.path(markName))
	if err != nil {
		return err
	}

	r.current = journalName

	if !r.present[journalName] && r.present[previousName] {
		// A crash between the two renames of a switch of journals.
		r.current, r.switching = previousName, true
		r.present[journalName], r.present[previousName] = true, false
	}

	return nil
}

// read reads everything, as far as damage allows.
func (r *recovery) read(ctx context.Context) error {
	err := r.readAll(ctx)
	if errors.Is(err, errStopReading) {
		return nil
	}

	return err
}

// stop reports damage behind which nothing can be read.
func (r *recovery) stop(damage *DamageError) error {
	err := r.damaged(damage)
	if err == nil {
		err = errStopReading
	}

	return err
}

func (r *recovery) readAll(ctx context.Context) error {
	if r.present[snapshotName] {
		err := r.readSnapshot(ctx)
		if err != nil {
			return err
		}
	}

	if !r.present[journalName] {
		return r.stop(&DamageError{File: r.path(journalName), Reason: "the journal is missing"})
	}

	journal, err := r.openJournal(r.current)
	if err != nil {
		return err
	}

	defer journal.Close()

	after, err := r.readHead(journal, r.path(r.current))
	if err != nil {
		return err
	}

	err = r.checkStart(after)
	if err != nil {
		return err
	}

	r.needsPrevious = r.present[previousName] && after > r.snapshot.sequence

	from := r.snapshot.sequence
	if r.needsPrevious {
		err = r.readPrevious(ctx, after)
		if err != nil {
			return err
		}

		from = r.previous.last
	}

	return r.readCurrent(ctx, journal, after, from)
}

// checkStart compares where the journal starts with where the snapshot ends.
func (r *recovery) checkStart(after uint64) error {
	switch {
	case !r.present[snapshotName] && after > 0:
		return r.stop(&DamageError{
			File: r.path(snapshotName), hopeless: true,
			Reason: fmt.Sprintf("the snapshot is missing, and the journal starts only after transaction %d", after),
		})
	case after > r.snapshot.sequence && !r.present[previousName]:
		return r.stop(&DamageError{
			File: r.path(r.current), Line: 1, hopeless: true,
			Reason: fmt.Sprintf("the journal starts after transaction %d, the snapshot ends at %d: what lies between is missing",
				after, r.snapshot.sequence),
		})
	default:
		return nil
	}
}

func (r *recovery) readPrevious(ctx context.Context, next uint64) error {
	path := r.path(previousName)

	file, err := r.openJournal(previousName)
	if err != nil {
		return err
	}

	defer file.Close()

	after, err := r.readHead(file, path)
	if err != nil {
		return err
	}

	if after > r.snapshot.sequence {
		return r.stop(&DamageError{
			File: path, Line: 1, hopeless: true,
			Reason: fmt.Sprintf("the journal starts after transaction %d, the snapshot ends at %d: what lies between is missing",
				after, r.snapshot.sequence),
		})
	}

	r.previous, err = r.readJournal(ctx, file, path, after, r.snapshot.sequence)

	switch {
	case err != nil:
		return err
	case r.previous.remnant:
		// A journal is only set aside when all in it is durable.
		return r.stop(r.previous.torn)
	case r.previous.last != next:
		return r.stop(&DamageError{
			File: r.path(r.current), Line: 1,
			Reason: fmt.Sprintf("the journal starts after transaction %d, %s ends at %d", next, previousName, r.previous.last),
		})
	default:
		return nil
	}
}

func (r *recovery) readCurrent(ctx context.Context, file File, after, from uint64) error {
	var err error

	r.journal, err = r.readJournal(ctx, file, r.path(r.current), after, from)

	switch {
	case err != nil:
		return err
	case r.journal.last < r.mark:
		return r.stop(r.missing())
	case r.journal.last < r.snapshot.sequence:
		return r.stop(&DamageError{
			File: r.path(r.current),
			Reason: fmt.Sprintf("the journal ends at transaction %d, before the snapshot does at %d",
				r.journal.last, r.snapshot.sequence),
		})
	case !r.present[snapshotName] && r.journal.last > 0:
		return r.stop(&DamageError{File: r.path(snapshotName), Reason: "the snapshot is missing, and the journal has transactions"})
	default:
		return nil
	}
}

// missing returns the damage of a journal that ends before the mark.
func (r *recovery) missing() *DamageError {
	reason := fmt.Sprintf("transactions up to %d were durable, as %s says, and the journal ends at %d", r.mark, markName, r.journal.last)
	if r.journal.torn != nil {
		reason += ": " + r.journal.torn.Reason
	}

	return &DamageError{File: r.path(r.current), Line: r.journal.line + 1, Reason: reason}
}

// openJournal opens a journal so that what is read is what the disk has. After
// a failed fsync the page cache may show lines that never reached it, and after
// a kill such that have not yet: neither may be shown to anyone.
func (r *recovery) openJournal(name string) (File, error) {
	file, err := r.files.OpenFile(r.path(name), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrPermission) {
		// Verify may be run by a user who can only read.
		file, err = r.files.OpenFile(r.path(name), os.O_RDONLY, 0)
	}

	if err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}

	err = errors.Join(file.Sync(), file.Forget())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read the journal %s: %w", r.path(name), err), file.Close())
	}

	return file, nil
}

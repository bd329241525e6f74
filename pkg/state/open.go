package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// load reads the directory into the collections and makes it ready for writing.
func (s *Store) load(ctx context.Context) error {
	files := s.options.FS

	for _, name := range []string{snapshotDraft, journalDraft} {
		err := removeIfThere(files, filepath.Join(s.dir, name))
		if err != nil {
			return err
		}
	}

	found := &recovery{
		dir: s.dir, files: files,
		find:    func(name string) collection { return s.collections[name] },
		damaged: func(damage *DamageError) error { return damage },
	}

	err := found.look()
	if err != nil {
		return err
	}

	err = s.makeWhole(found)
	if err != nil {
		return err
	}

	err = found.read(ctx)
	if err != nil {
		return err
	}

	return s.adopt(ctx, found)
}

// makeWhole does what comes before reading: a directory that is new gets a
// journal, and a switch of journals that a crash interrupted is taken back.
func (s *Store) makeWhole(found *recovery) error {
	files := s.options.FS
	current := filepath.Join(s.dir, journalName)

	switch {
	case found.switching:
		err := files.Rename(filepath.Join(s.dir, previousName), current)
		if err != nil {
			return fmt.Errorf("take back a switch of journals: %w", err)
		}
	case found.present[journalName], found.present[snapshotName], found.mark > 0:
		return nil
	default:
		draft := filepath.Join(s.dir, journalDraft)

		made, err := draftJournal(files, draft, 0)
		if err != nil {
			return err
		}

		err = errors.Join(made.file.Close(), files.Rename(draft, current))
		if err != nil {
			return fmt.Errorf("make a journal: %w", err)
		}
	}

	err := files.SyncDir(s.dir)
	if err != nil {
		return fmt.Errorf("name the journal: %w", err)
	}

	found.switching = false

	return found.look()
}

// adopt takes over what was read.
func (s *Store) adopt(ctx context.Context, found *recovery) error {
	s.sequence = found.journal.last
	s.durable = s.sequence
	s.snapshotBytes = found.snapshot.bytes
	s.previous = found.needsPrevious

	if !found.present[snapshotName] {
		// Only a directory without a single transaction has none.
		var err error

		s.snapshotBytes, _, err = writeSnapshot(ctx, s.options.FS, s.dir, 0, s.frozen())
		if err != nil {
			return err
		}
	}

	if found.present[previousName] && !found.needsPrevious {
		err := removeIfThere(s.options.FS, filepath.Join(s.dir, previousName))
		if err != nil {
			return err
		}
	}

	file, err := s.options.FS.OpenFile(filepath.Join(s.dir, journalName), os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open the journal: %w", err)
	}

	s.mark, err = s.options.FS.OpenFile(filepath.Join(s.dir, markName), os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return errors.Join(fmt.Errorf("open the mark of the journal: %w", err), file.Close())
	}

	s.journal = &journal{
		file: file, end: found.journal.end, filled: found.journal.size / journalChunk * journalChunk, closed: found.journal.closed,
	}
	if !found.journal.remnant {
		return nil
	}

	err = s.dropTorn(found)
	if err != nil {
		return errors.Join(err, file.Close(), s.mark.Close())
	}

	return nil
}

// dropTorn wipes what follows the last good line: a remnant must not be taken for
// a transaction once other lines precede it.
func (s *Store) dropTorn(found *recovery) error {
	s.options.Log.Warn("dropping the end of the journal: a write was interrupted and never acknowledged",
		"file", found.journal.path, "line", found.journal.torn.Line, "reason", found.journal.torn.Reason)

	err := s.journal.wipe()
	if err == nil {
		err = s.journal.file.Sync()
	}

	if err != nil {
		return fmt.Errorf("drop the end of the journal: %w", err)
	}

	return nil
}

func (s *Store) frozen() []namedFrozen {
	all := make([]namedFrozen, 0, len(s.collections))
	for _, name := range s.names() {
		all = append(all, namedFrozen{s.collections[name].frozen(), name})
	}

	return all
}

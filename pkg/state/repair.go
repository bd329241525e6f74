package state

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Repaired says what Repair did.
type Repaired struct {
	// Before is what Verify says about the directory as it was.
	Before Report `json:"before"`
	// Backups are the paths of the files as they were, next to the new ones.
	Backups []string `json:"backups"`
}

// Repair does what Verify named as the fixes of its findings, and nothing else: all that can be
// read becomes the base of a new journal, after the journal as it was has been copied to a name that
// ends in .damaged-N. With no findings it does nothing. With one that has no fix it changes nothing
// and fails with ErrNotRepairable. It fails with *LockedError while a store has the directory open.
func (s *Store) Repair() (Repaired, error) {
	if _, err := os.Stat(s.dir); err != nil {
		return Repaired{}, fmt.Errorf("repair state: %w", err)
	}
	lock, err := lockForWriting(s.dir, s.options.Owner)
	if err != nil {
		return Repaired{}, err
	}
	defer lock.Close()
	seen, err := s.inspect()
	if err != nil {
		return Repaired{}, err
	}
	done := Repaired{Before: seen.report(), Backups: []string{}}
	for _, finding := range done.Before.Findings {
		if finding.Fix == "" {
			return done, fmt.Errorf("%w: %s line %d: %s; restore the file from a backup", ErrNotRepairable,
				finding.File, finding.Line, finding.Reason)
		}
	}
	if done.Before.Clean() {
		return done, nil
	}
	backup, err := backUp(seen.path)
	if err != nil {
		return done, fmt.Errorf("repair state: %w", err)
	}
	done.Backups = append(done.Backups, backup)
	if err := seen.renew(); err != nil {
		return done, fmt.Errorf("repair state: %w", err)
	}
	return done, nil
}

// renew writes what was read as a new journal. Then it removes the mark, which may name a change
// that is given up.
func (seen *inspection) renew() error {
	fresh, err := draftJournal(context.Background(), seen.files, seen.dir, seen.last, seen.versions())
	if err != nil {
		return err
	}
	if err := errors.Join(fresh.install(seen.files, seen.dir), fresh.file.Close()); err != nil {
		return err
	}
	return errors.Join(removeIfExists(seen.files, filepath.Join(seen.dir, markName)), seen.files.SyncDir(seen.dir))
}

// backUp copies a file to the first name that no copy has yet, and returns it. It leaves no part of a copy.
func backUp(path string) (string, error) {
	source, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer source.Close()
	for number := 1; ; number++ {
		name := fmt.Sprintf("%s.damaged-%d", path, number)
		target, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		_, err = io.Copy(target, source)
		if err := errors.Join(err, target.Sync(), target.Close(), osFS{}.SyncDir(filepath.Dir(path))); err != nil {
			return "", errors.Join(err, os.Remove(name))
		}
		return name, nil
	}
}

package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Repaired says what Repair did.
type Repaired struct {
	// Before is what Verify says about the directory as it was.
	Before Report `json:"before"`
	// Backups are the paths of the files as they were, next to the new ones.
	Backups []string `json:"backups"`
}

// Repair does what Verify named as the fixes of its findings, and nothing else:
// all that can be read goes into a new snapshot with an empty journal, after
// the files as they were have been copied to names that end in .damaged-N. With
// no findings it does nothing. With one that has no fix it changes nothing and
// fails with ErrNotRepairable. It fails with *LockedError while a store has the
// directory open.
func Repair(dir string) (Repaired, error) {
	_, err := os.Stat(dir)
	if err != nil {
		return Repaired{}, fmt.Errorf("repair state: %w", err)
	}

	lock, err := lockForWriting(dir, "state repair")
	if err != nil {
		return Repaired{}, err
	}

	defer lock.Close()

	seen, err := inspect(dir)
	if err != nil {
		return Repaired{}, err
	}

	done := Repaired{Before: seen.report(), Backups: []string{}}
	if done.Before.Clean() {
		return done, nil
	}

	for _, finding := range done.Before.Findings {
		if finding.Fix == "" {
			return done, fmt.Errorf("%w: %s line %d: %s; restore the file from a backup", ErrNotRepairable,
				finding.File, finding.Line, finding.Reason)
		}
	}

	done.Backups, err = backUp(dir)
	if err == nil {
		err = seen.renew()
	}

	if err != nil {
		return done, fmt.Errorf("repair state: %w", err)
	}

	return done, nil
}

// renew writes what was read as a snapshot and an empty journal. The snapshot
// is first, since a journal that starts behind it would be worse than before.
func (seen *inspection) renew() error {
	_, _, err := writeSnapshot(context.Background(), seen.files, seen.dir, seen.sequence(), seen.frozen())
	if err != nil {
		return err
	}

	draft := seen.path(journalDraft)

	fresh, err := draftJournal(seen.files, draft, seen.sequence())
	if err != nil {
		return err
	}

	err = errors.Join(fresh.file.Close(),
		seen.files.Rename(draft, seen.path(journalName)),
		removeIfThere(seen.files, seen.path(previousName)),
		seen.files.SyncDir(seen.dir))
	if err != nil {
		return err
	}

	// Last the mark, which may name a transaction that is given up.
	return errors.Join(removeIfThere(seen.files, seen.path(markName)),
		seen.files.SyncDir(seen.dir))
}

// backUp copies what is there, under the first number that no copy has yet.
func backUp(dir string) ([]string, error) {
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("back up: %w", err)
	}

	const mark = ".damaged-"

	number := 1
	for slices.ContainsFunc(names, func(each fs.DirEntry) bool {
		return strings.HasSuffix(each.Name(), mark+strconv.Itoa(number))
	}) {
		number++
	}

	copies := []string{}

	for _, name := range []string{snapshotName, journalName, previousName} {
		from := filepath.Join(dir, name)
		to := from + mark + strconv.Itoa(number)

		err := copyFile(from, to)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}

		if err != nil {
			return copies, fmt.Errorf("back up: %w", err)
		}

		copies = append(copies, to)
	}

	return copies, osFS{}.SyncDir(dir)
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err //nolint:wrapcheck // wrapped by the caller
	}

	defer source.Close()

	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return err //nolint:wrapcheck // wrapped by the caller
	}

	_, err = io.Copy(target, source)

	return errors.Join(err, target.Sync(), target.Close())
}

var errNotJSON = errors.New("the snapshot is not JSON of the right form")

// looseSnapshot is state.json as any program reads it.
type looseSnapshot struct {
	Format      string  `json:"format"`
	Version     int     `json:"version"`
	Sequence    *uint64 `json:"sequence"`
	Collections map[string]map[string]struct {
		Record json.RawMessage `json:"record"`
	} `json:"collections"`
}

// readLeniently fails with errNotJSON where nothing can be made of the file.
func (r *recovery) readLeniently() error {
	text, err := os.ReadFile(r.path(snapshotName))
	if err != nil {
		return fmt.Errorf("read the snapshot: %w", err)
	}

	var loose looseSnapshot

	err = json.Unmarshal(text, &loose)
	if err != nil || loose.Format != snapshotFormat || loose.Version != formatVersion || loose.Sequence == nil {
		return errNotJSON
	}

	r.snapshot.sequence = *loose.Sequence

	for name, records := range loose.Collections {
		target := r.find(name)

		for key, each := range records {
			value, err := target.decode(each.Record)
			if err == nil && key != "" {
				err = target.recover(key, value)
			}

			if err != nil {
				return errNotJSON
			}
		}
	}

	return nil
}

package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

// load reads the directory into the collections and makes it ready for changes.
func (c *committer) load(ctx context.Context) error {
	files := c.options.FS
	path := filepath.Join(c.dir, journalName)
	if err := removeIfExists(files, filepath.Join(c.dir, draftName)); err != nil {
		return err
	}
	mark, err := readMark(files, filepath.Join(c.dir, markName))
	if err != nil {
		return err
	}
	found, err := findJournal(files, c.dir, mark)
	if err != nil {
		return err
	}
	if !found {
		if err := c.create(ctx); err != nil {
			return err
		}
	}
	file, err := openJournal(files, path)
	if err != nil {
		return err
	}
	read := &loader{path: path, writer: c.writer, damaged: func(damage *DamageError) error { return damage }}
	if err := read.read(ctx, file, mark); err != nil {
		return errors.Join(err, file.Close())
	}
	c.mark.file, err = files.OpenFile(filepath.Join(c.dir, markName), os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	c.writer.sequence, c.written = read.last, read.last
	c.journal = &journal{
		file: file, base: read.base.size, end: read.end.size, filled: read.at.size / journalChunk * journalChunk, closed: read.closed,
	}
	if read.remnant {
		err = c.dropTorn(read.torn)
	}
	if err != nil {
		return errors.Join(err, file.Close(), c.mark.file.Close())
	}
	return nil
}

// findJournal reports whether the directory has a journal. It fails if the directory is not a new
// one nevertheless.
func findJournal(files FS, dir string, mark uint64) (bool, error) {
	path := filepath.Join(dir, journalName)
	found, err := exists(files, path)
	if err != nil || found {
		return found, err
	}
	err = refuseOldFormat(files, dir)
	if err != nil || mark == 0 {
		return false, err
	}
	return false, &DamageError{File: path, Reason: fmt.Sprintf(
		"the journal is missing, and changes up to %d were durable, as %s says: restore it, or remove %s to begin with an empty state",
		mark, markName, markName)}
}

// create makes the journal of a new directory.
func (c *committer) create(ctx context.Context) error {
	made, err := draftJournal(ctx, c.options.FS, c.dir, 0, c.writer.versions())
	if err != nil {
		return err
	}
	return errors.Join(made.install(c.options.FS, c.dir), made.file.Close())
}

// dropTorn wipes what follows the last good line: a remnant must not be taken for a change once
// other lines precede it.
func (c *committer) dropTorn(torn *DamageError) (err error) {
	defer errdefs.Wrapf(&err, "drop the end of the journal")
	c.options.Log.Warn("dropping the end of the journal: a write was interrupted and never synced",
		"file", torn.File, "line", torn.Line, "reason", torn.Reason)
	if err := c.journal.wipe(); err != nil {
		return err
	}
	return c.journal.file.Sync()
}

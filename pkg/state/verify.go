package state

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// Report is what Verify found.
type Report struct {
	Dir string `json:"dir"`
	// Sequence is the number of the last change that can be read.
	Sequence uint64 `json:"sequence"`
	// Records counts the records of each collection that can be read.
	Records map[string]int `json:"records"`
	// Findings are damage: a store does not open with any of them.
	Findings []Finding `json:"findings"`
	// Notes are what a crash leaves and the next start removes: no damage.
	Notes []Finding `json:"notes"`
}

// Clean returns whether a store opens here.
func (r Report) Clean() bool { return len(r.Findings) == 0 }

// Finding is one thing that Verify found.
type Finding struct {
	File string `json:"file"`
	// Line counts from 1; 0 means the file as a whole.
	Line int `json:"line,omitempty"`
	// Collection and Key name the record that cannot be used; empty for other damage.
	Collection string `json:"collection,omitempty"`
	Key        string `json:"key,omitempty"`
	Reason     string `json:"reason"`
	// Fix says what Repair does about it; it is empty if that needs a person.
	Fix string `json:"fix,omitempty"`
}

// Verify reads the directory as Open does, without changing it: what Open refuses is in the report,
// and nothing else. It fails with *LockedError while a store has the directory open, and with another
// error when it cannot be read at all. Of a directory without damage, visit, if it is not nil, gets
// each record as the JSON that it is kept as, until it returns an error. A store that verifies, dumps
// or repairs cannot be used again.
func (s *Store) Verify(visit func(collection, key string, record json.RawMessage) error) (Report, error) {
	seen, err := s.inspectLocked()
	if err != nil {
		return Report{Dir: s.dir}, err
	}
	report := seen.report()
	if visit == nil || !report.Clean() {
		return report, nil
	}
	for _, each := range seen.versions() {
		for key, record := range each.records {
			err = visit(each.name, key, record.(json.RawMessage)) //nolint:forcetypeassert // see inspected
			if err != nil {
				return report, err
			}
		}
	}
	return report, nil
}

// Dump writes all records as one JSON document, one record a line, as a store would read them. It
// fails with *DamageError where the store does not open, and with *LockedError while one has the
// directory open.
func (s *Store) Dump(w io.Writer) error {
	seen, err := s.inspectLocked()
	if err != nil {
		return err
	}
	if len(seen.damage) > 0 {
		return seen.damage[0]
	}
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "{\n  \"sequence\": %d,\n  \"collections\": {", seen.last)
	separator := ""
	for _, each := range seen.versions() {
		fmt.Fprintf(out, "%s\n    %s: {", separator, quote(each.name))
		separator = ""
		for key, record := range each.records {
			fmt.Fprintf(out, "%s\n      %s: %s", separator, quote(key), record)
			separator = ","
		}
		fmt.Fprint(out, "\n    }")
		separator = ","
	}
	fmt.Fprint(out, "\n  }\n}\n")
	// The writer keeps its first error.
	err = out.Flush()
	if err != nil {
		return fmt.Errorf("dump state: %w", err)
	}
	return nil
}

// inspection is a state directory, read as the store would read it.
type inspection struct {
	loader

	dir    string
	files  FS
	damage []*DamageError
	// journal and draft say whether these files exist.
	journal, draft bool
	// collections are those of the store.
	collections map[string]*inspected
}

// inspected is a collection that keeps the text of its records: a repair must not lose members that
// this program does not know.
type inspected struct {
	collection

	text *Collection[json.RawMessage]
}

// inspectedRecord is what inspected decodes.
type inspectedRecord struct {
	value any
	text  json.RawMessage
}

func (c *inspected) decode(key string, encoded []byte) (any, error) {
	value, err := c.collection.decode(key, encoded)
	return inspectedRecord{value, bytes.Clone(encoded)}, err
}

func (c *inspected) recover(key string, decoded any) error {
	record := decoded.(inspectedRecord) //nolint:forcetypeassert // decode returns nothing else
	if err := c.collection.recover(key, record.value); err != nil {
		return err
	}
	return c.text.recover(key, record.text)
}

func (c *inspected) recoverDeleted(key string) {
	c.collection.recoverDeleted(key)
	c.text.recoverDeleted(key)
}

func (s *Store) inspectLocked() (*inspection, error) {
	lock, err := lockForReading(s.dir)
	if err != nil {
		return nil, err
	}
	if lock != nil {
		defer lock.Close()
	}
	return s.inspect()
}

func (s *Store) inspect() (*inspection, error) {
	s.writer.mu.Lock()
	defer s.writer.mu.Unlock()
	if s.writer.phase != phaseNew {
		return nil, fmt.Errorf("%w: %s was read before", ErrNotOpen, s.dir)
	}
	s.writer.phase = phaseClosed
	seen := &inspection{dir: s.dir, files: s.options.FS, collections: map[string]*inspected{}}
	for name, each := range s.writer.collections {
		seen.collections[name] = &inspected{each, newCollection[json.RawMessage](nil, name)}
	}
	seen.loader = loader{
		path: filepath.Join(s.dir, journalName),
		find: func(name string) collection {
			if c := seen.collections[name]; c != nil {
				return c
			}
			return nil
		},
		check: s.writer.check,
		damaged: func(damage *DamageError) error {
			seen.damage = append(seen.damage, damage)
			return nil
		},
	}
	if err := seen.readAll(); err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	for _, each := range seen.collections {
		if publish := each.text.seal(); publish != nil {
			publish()
		}
	}
	return seen, nil
}

func (seen *inspection) readAll() error {
	_, err := os.Stat(seen.dir)
	if err != nil {
		return err
	}
	seen.draft, err = exists(seen.files, filepath.Join(seen.dir, draftName))
	if err != nil {
		return err
	}
	mark, err := readMark(seen.files, filepath.Join(seen.dir, markName))
	if err != nil {
		return err
	}
	seen.journal, err = findJournal(seen.files, seen.dir, mark)
	if missing, ok := errors.AsType[*DamageError](err); ok {
		return seen.damaged(missing)
	}
	if err != nil || !seen.journal {
		return err
	}
	file, err := openJournal(seen.files, seen.path)
	if err != nil {
		return err
	}
	defer file.Close()
	return seen.read(context.Background(), file, mark)
}

// versions returns what the collections have that the journal names.
func (seen *inspection) versions() []version {
	var all []version
	for _, name := range slices.Sorted(maps.Keys(seen.collections)) {
		if seen.named[name] {
			all = append(all, seen.collections[name].text.version(name))
		}
	}
	return all
}

func (seen *inspection) report() Report {
	report := Report{
		Dir: seen.dir, Sequence: seen.last, Records: map[string]int{},
		Findings: []Finding{}, Notes: seen.notes(),
	}
	for _, each := range seen.versions() {
		report.Records[each.name] = each.count
	}
	for _, damage := range seen.damage {
		finding := Finding{
			File: damage.File, Line: damage.Line, Collection: damage.Collection, Key: damage.Key, Reason: damage.Reason,
		}
		switch damage.fix {
		case fixNone:
		case fixKeep:
			finding.Fix = "keep the records as the file reads now, whatever its checksums say: " +
				"examine the line first, and correct it if necessary"
		case fixDrop:
			finding.Fix = fmt.Sprintf("keep the changes up to %d and drop this line and all that follow", seen.last)
		case fixOmit:
			finding.Fix = "drop this record and no other; its data stay in the pool. If a newer program has written it, " +
				"use that one instead; docs/state-format.md says how to correct it"
		}
		report.Findings = append(report.Findings, finding)
	}
	return report
}

func (seen *inspection) notes() []Finding {
	notes := []Finding{}
	if !seen.journal && len(seen.damage) == 0 {
		notes = append(notes, Finding{File: seen.dir, Reason: "there is no state here"})
	}
	if seen.draft {
		notes = append(notes, Finding{
			File:   filepath.Join(seen.dir, draftName),
			Reason: "a compaction was interrupted; the next start removes this file",
		})
	}
	if seen.remnant && len(seen.damage) == 0 {
		notes = append(notes, Finding{
			File: seen.torn.File, Line: seen.torn.Line,
			Reason: "a write was interrupted here and never acknowledged; the next start drops it: " + seen.torn.Reason,
		})
	}
	return notes
}

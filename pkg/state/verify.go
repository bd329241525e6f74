package state

import (
	"bufio"
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
			//nolint:forcetypeassert // see inspection.versions
			if err := visit(each.name, key, record.(json.RawMessage)); err != nil {
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
	if err := out.Flush(); err != nil {
		return fmt.Errorf("dump state: %w", err)
	}
	return nil
}

// inspection is a state directory, read as the store would read it, with the text of its records: a repair
// must not lose members that this program does not know.
type inspection struct {
	loader

	dir    string
	files  FS
	damage []*DamageError
	// journal and draft say whether these files exist.
	journal, draft bool
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
	seen := &inspection{dir: s.dir, files: s.options.FS}
	seen.loader = loader{
		path: filepath.Join(s.dir, journalName), writer: s.writer, texts: map[string]map[string]json.RawMessage{},
		damaged: func(damage *DamageError) error {
			seen.damage = append(seen.damage, damage)
			return nil
		},
	}
	for name := range s.writer.collections {
		seen.texts[name] = map[string]json.RawMessage{}
	}
	if err := seen.readAll(); err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	return seen, nil
}

func (seen *inspection) readAll() error {
	if _, err := os.Stat(seen.dir); err != nil {
		return err
	}
	var err error
	if seen.draft, err = exists(seen.files, filepath.Join(seen.dir, draftName)); err != nil {
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
	for _, name := range slices.Sorted(maps.Keys(seen.texts)) {
		if records := seen.texts[name]; seen.named[name] {
			all = append(all, version{name, len(records), func(yield func(string, any) bool) {
				for _, key := range slices.Sorted(maps.Keys(records)) {
					if !yield(key, records[key]) {
						return
					}
				}
			}})
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
		report.Findings = append(report.Findings, Finding(*damage))
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

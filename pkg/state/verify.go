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
	"sync"
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
	Line   int    `json:"line,omitempty"`
	Reason string `json:"reason"`
	// Fix says what Repair does about it; it is empty if that needs a person.
	Fix string `json:"fix,omitempty"`
}

// Verify reads a state directory without changing it and without knowing its collections: unique
// indexes, which belong to the program, are not checked. It fails with *LockedError while a store
// has it open, and with another error when it cannot be read at all; damage is in the report, not in
// the error. Of a directory without damage, visit, if it is not nil, gets each record that a store
// would read, as the JSON that it is kept as, until it returns an error.
func Verify(dir string, visit func(collection, key string, record json.RawMessage) error) (Report, error) {
	seen, err := inspectLocked(dir)
	if err != nil {
		return Report{Dir: dir}, err
	}
	report := seen.report()
	if visit == nil || !report.Clean() {
		return report, nil
	}
	for _, each := range seen.versions() {
		for key, record := range each.records {
			err = visit(each.name, key, record.(json.RawMessage)) //nolint:forcetypeassert // see find
			if err != nil {
				return report, err
			}
		}
	}
	return report, nil
}

// Dump writes all records as one JSON document, one record a line, as a store would read them. It
// fails with *DamageError where a store does not open, and with *LockedError while one has the
// directory open.
func Dump(dir string, w io.Writer) error {
	seen, err := inspectLocked(dir)
	if err == nil && len(seen.damage) > 0 {
		err = seen.damage[0]
	}
	if err != nil {
		return err
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

// inspection is a state directory read without its types.
type inspection struct {
	loader

	dir    string
	damage []*DamageError
	// journal and draft say whether these files exist.
	journal, draft bool

	mu          sync.Mutex
	collections map[string]*Collection[json.RawMessage]
}

func inspectLocked(dir string) (*inspection, error) {
	lock, err := lockForReading(dir)
	if err != nil {
		return nil, err
	}
	if lock != nil {
		defer lock.Close()
	}
	return inspect(dir)
}

func inspect(dir string) (*inspection, error) {
	seen := &inspection{dir: dir, collections: map[string]*Collection[json.RawMessage]{}}
	seen.loader = loader{
		path: filepath.Join(dir, journalName),
		find: seen.find,
		damaged: func(damage *DamageError) error {
			seen.damage = append(seen.damage, damage)
			return nil
		},
	}
	_, err := os.Stat(dir)
	if err == nil {
		err = seen.readAll()
	}
	if err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	for _, each := range seen.collections {
		if publish := each.seal(); publish != nil {
			publish()
		}
	}
	return seen, nil
}

func (seen *inspection) readAll() error {
	files := osFS{}
	var err error
	seen.draft, err = exists(files, filepath.Join(seen.dir, draftName))
	if err != nil {
		return err
	}
	mark, err := readMark(files, filepath.Join(seen.dir, markName))
	if err != nil {
		return err
	}
	seen.journal, err = findJournal(files, seen.dir, mark)
	if missing, ok := errors.AsType[*DamageError](err); ok {
		return seen.damaged(missing)
	}
	if err != nil || !seen.journal {
		return err
	}
	file, err := openJournal(files, seen.path)
	if err != nil {
		return err
	}
	defer file.Close()
	return seen.read(context.Background(), file, mark)
}

func (seen *inspection) find(name string) collection {
	seen.mu.Lock()
	defer seen.mu.Unlock()
	c := seen.collections[name]
	if c == nil {
		c = newCollection[json.RawMessage](nil, name)
		seen.collections[name] = c
	}
	return c
}

func (seen *inspection) versions() []version {
	all := make([]version, 0, len(seen.collections))
	for _, name := range slices.Sorted(maps.Keys(seen.collections)) {
		all = append(all, seen.collections[name].version(name))
	}
	return all
}

func (seen *inspection) report() Report {
	report := Report{
		Dir: seen.dir, Sequence: seen.last, Records: map[string]int{},
		Findings: []Finding{}, Notes: seen.notes(),
	}
	for name, c := range seen.collections {
		report.Records[name] = c.Len()
	}
	for _, damage := range seen.damage {
		finding := Finding{File: damage.File, Line: damage.Line, Reason: damage.Reason}
		switch damage.fix {
		case fixNone:
		case fixKeep:
			finding.Fix = "keep the records as the file reads now, whatever its checksums say: " +
				"examine the line first, and correct it if necessary"
		case fixDrop:
			finding.Fix = fmt.Sprintf("keep the changes up to %d and drop this line and all that follow", seen.last)
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

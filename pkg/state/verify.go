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
	"slices"
	"strconv"
	"sync"
)

// Report is what Verify found.
type Report struct {
	Dir string `json:"dir"`
	// Sequence is the number of the last transaction that can be read.
	Sequence uint64 `json:"sequence"`
	// Records counts the records of each collection that can be read.
	Records map[string]int `json:"records"`
	// Findings are damage: a store does not open with any of them.
	Findings []Finding `json:"findings"`
	// Notes are what a crash leaves and the next start removes: no damage.
	Notes []Finding `json:"notes"`
}

// Clean says whether a store opens here.
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

// Verify reads a state directory without changing it and without knowing its
// collections: unique indexes, which belong to the program, are not checked. It
// fails with *LockedError while a store has it open, and with another error when
// it cannot be read at all; damage is in the report, not in the error.
func Verify(dir string) (Report, error) {
	lock, err := lockForReading(dir)
	if err != nil {
		return Report{Dir: dir}, err
	}

	defer lock.Close()

	seen, err := inspect(dir)
	if err != nil {
		return Report{Dir: dir}, err
	}

	return seen.report(), nil
}

// Dump writes all records as one JSON document, one record a line, as a store
// would read them. It fails with *DamageError where a store does not open, and
// with *LockedError while one has the directory open.
func Dump(dir string, w io.Writer) error {
	lock, err := lockForReading(dir)
	if err != nil {
		return err
	}

	defer lock.Close()

	seen, err := inspect(dir)
	if err != nil {
		return err
	}

	if len(seen.damage) > 0 {
		return seen.damage[0]
	}

	return seen.dump(w)
}

// Records calls visit with each record that a store would read, as the JSON that
// it is kept as, until visit returns an error. Its errors beside that are Dump's.
func Records(dir string, visit func(collection, key string, record json.RawMessage) error) error {
	lock, err := lockForReading(dir)
	if err != nil {
		return err
	}

	defer lock.Close()

	seen, err := inspect(dir)
	if err != nil {
		return err
	}

	if len(seen.damage) > 0 {
		return seen.damage[0]
	}

	for name, c := range seen.collections {
		failed := error(nil)

		c.latest.records.Scan(func(key string, record json.RawMessage) bool {
			failed = visit(name, key, record)

			return failed == nil
		})

		if failed != nil {
			return failed
		}
	}

	return nil
}

// inspection is a state directory read without its types.
type inspection struct {
	*recovery

	damage []*DamageError
	// readable is true if the snapshot is at least JSON of the right form.
	readable bool

	mu          sync.Mutex
	collections map[string]*Collection[json.RawMessage]
}

// inspect reads a directory. If the snapshot is not what was written, it is
// read once more without its checksums.
func inspect(dir string) (*inspection, error) {
	strict, err := inspectOnce(dir, false)
	if err != nil {
		return nil, err
	}

	snapshot := slices.DeleteFunc(slices.Clone(strict.damage), func(damage *DamageError) bool {
		return damage.File != strict.path(snapshotName)
	})
	if len(snapshot) == 0 || !strict.present[snapshotName] {
		return strict, nil
	}

	lenient, err := inspectOnce(dir, true)
	if errors.Is(err, errNotJSON) {
		strict.readable = false

		return strict, nil
	}

	if err != nil {
		return nil, err
	}

	lenient.damage = append(snapshot, lenient.damage...)

	return lenient, nil
}

func inspectOnce(dir string, lenient bool) (*inspection, error) {
	seen := &inspection{readable: true, collections: map[string]*Collection[json.RawMessage]{}}
	seen.recovery = &recovery{
		dir: dir, files: osFS{}, lenient: lenient,
		find: seen.find,
		damaged: func(damage *DamageError) error {
			seen.damage = append(seen.damage, damage)

			return nil
		},
	}

	_, err := os.Stat(dir)
	if err == nil {
		err = seen.look()
	}

	if err == nil && (seen.present[snapshotName] || seen.present[journalName] || seen.mark > 0) {
		err = seen.read(context.Background())
	}

	if err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}

	return seen, nil
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

// sequence is the number of the last transaction that could be read.
func (seen *inspection) sequence() uint64 {
	return max(seen.snapshot.sequence, seen.previous.last, seen.journal.last)
}

func (seen *inspection) frozen() []namedFrozen {
	all := make([]namedFrozen, 0, len(seen.collections))
	for _, name := range slices.Sorted(maps.Keys(seen.collections)) {
		all = append(all, namedFrozen{frozenTable[json.RawMessage]{seen.collections[name].latest}, name})
	}

	return all
}

func (seen *inspection) report() Report {
	report := Report{
		Dir: seen.dir, Sequence: seen.sequence(), Records: map[string]int{},
		Findings: []Finding{}, Notes: seen.notes(),
	}

	for name, c := range seen.collections {
		report.Records[name] = c.latest.records.Len()
	}

	for _, damage := range seen.damage {
		report.Findings = append(report.Findings, Finding{
			File: damage.File, Line: damage.Line, Reason: damage.Reason, Fix: seen.fix(damage),
		})
	}

	return report
}

// fix says what Repair would do.
func (seen *inspection) fix(damage *DamageError) string {
	last := strconv.FormatUint(seen.sequence(), 10)

	switch {
	case damage.hopeless || !seen.readable:
		return ""
	case damage.File == seen.path(snapshotName) && seen.present[snapshotName]:
		return "keep the records as the file reads now, whatever its checksums say: examine the line first, and correct it if necessary"
	case damage.File == seen.path(snapshotName):
		return "write it again from the journal, which has everything since transaction 1"
	case damage.Line == 0:
		return "go on from transaction " + last + " with an empty journal"
	case damage.Line == 1:
		return "keep the transactions up to " + last + " and give the journal a new head"
	default:
		return "keep the transactions up to " + last + " and drop this line and all that follow"
	}
}

func (seen *inspection) notes() []Finding {
	notes := []Finding{}
	note := func(name, reason string) {
		notes = append(notes, Finding{File: seen.path(name), Reason: reason})
	}

	if !seen.present[snapshotName] && !seen.present[journalName] {
		note("", "there is no state here")
	} else if !seen.present[snapshotName] && len(seen.damage) == 0 {
		note(snapshotName, "the very first start was interrupted")
	}

	for _, name := range []string{snapshotDraft, journalDraft} {
		if seen.present[name] {
			note(name, "a compaction was interrupted; the next start removes this file")
		}
	}

	switch {
	case seen.switching:
		note(previousName, "a switch of journals was interrupted; the next start takes it back")
	case seen.needsPrevious:
		note(previousName, "a compaction was interrupted; the next start finishes it")
	case seen.present[previousName]:
		note(previousName, "the snapshot holds all of it; the next start removes this file")
	}

	if seen.journal.remnant && len(seen.damage) == 0 {
		notes = append(notes, Finding{
			File: seen.journal.torn.File, Line: seen.journal.torn.Line,
			Reason: "a write was interrupted here and never acknowledged; the next start drops it: " + seen.journal.torn.Reason,
		})
	}

	return notes
}

func (seen *inspection) dump(w io.Writer) error {
	out := bufio.NewWriter(w)
	_, _ = fmt.Fprintf(out, "{\n  \"sequence\": %d,\n  \"collections\": {", seen.sequence())

	for i, c := range seen.frozen() {
		separator := ","
		if i == 0 {
			separator = ""
		}

		_, _ = fmt.Fprintf(out, "%s\n    %s: {", separator, appendJSONString(nil, c.name))
		separator = ""

		err := c.each(func(key string, value any) error {
			_, err := fmt.Fprintf(out, "%s\n      %s: %s", separator, appendJSONString(nil, key), value)
			separator = ","

			return err //nolint:wrapcheck // wrapped below
		})
		if err != nil {
			return fmt.Errorf("dump state: %w", err)
		}

		_, _ = fmt.Fprint(out, "\n    }")
	}

	_, _ = fmt.Fprint(out, "\n  }\n}\n")

	// The writer keeps its first error.
	err := out.Flush()
	if err != nil {
		return fmt.Errorf("dump state: %w", err)
	}

	return nil
}

package state

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
)

// recordKey names a record.
type recordKey struct{ collection, key string }

func (k recordKey) compare(other recordKey) int {
	return cmp.Or(cmp.Compare(k.collection, other.collection), cmp.Compare(k.key, other.key))
}

// applyToRecord applies a line whose place in the journal is right. A record that cannot be used is
// left out. It is damage unless a later line replaces or deletes it, and affects no other record.
func (l *loader) applyToRecord(p *parsedLine) {
	key, reason := recordKey{p.Collection, p.Key}, p.unusable
	delete(l.refused, key)
	l.named[p.Collection] = true
	if reason == nil && !p.deleting {
		reason = p.target.recover(p.Key, p.value)
	}
	switch {
	case reason != nil || p.deleting:
		l.leaveOut(key)
	case l.texts != nil:
		l.texts[p.Collection][p.Key] = p.Record
	}
	if reason != nil {
		l.refused[key] = l.refusal(key, p.number, reason)
	}
}

// leaveOut removes a record from its collection, if this program knows that.
func (l *loader) leaveOut(key recordKey) {
	if target := l.writer.collections[key.collection]; target != nil {
		target.recoverDeleted(key.key)
		delete(l.texts[key.collection], key.key)
	}
}

func (l *loader) refusal(key recordKey, line int, reason error) *DamageError {
	return &DamageError{
		File: l.path, Line: line, Collection: key.collection, Key: key.key, Reason: reason.Error(), Fix: fixOmit,
	}
}

// checkRecords reports the records that are left out, and leaves out those that contradict others.
func (l *loader) checkRecords(file File) error {
	refused := slices.SortedFunc(maps.Values(l.refused), func(a, b *DamageError) int { return a.Line - b.Line })
	for _, damage := range refused {
		if err := l.damaged(damage); err != nil {
			return err
		}
	}
	for {
		found := map[recordKey]error{}
		l.writer.check(func(collection, key string, reason error) { found[recordKey{collection, key}] = reason })
		if len(found) == 0 {
			return nil
		}
		lines, err := linesOf(file, found)
		if err != nil {
			return err
		}
		for _, key := range slices.SortedFunc(maps.Keys(found), recordKey.compare) {
			if err := l.damaged(l.refusal(key, lines[key], found[key])); err != nil {
				return err
			}
			l.leaveOut(key)
		}
	}
}

// linesOf returns the number of the last line of each record.
func linesOf(file File, wanted map[recordKey]error) (map[recordKey]int, error) {
	number, found := 0, map[recordKey]int{}
	err := readChunks(file, func(c *chunk) error {
		for text := range bytes.Lines(c.text) {
			number++
			if len(text) == 1 {
				continue // preallocated, as most lines are
			}
			read, err := parseLine(bytes.TrimSuffix(text, []byte{'\n'}))
			if key := (recordKey{read.Collection, read.Key}); err == nil && wanted[key] != nil {
				found[key] = number
			}
		}
		return nil
	})
	return found, err
}

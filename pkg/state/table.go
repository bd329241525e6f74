package state

import "github.com/tidwall/btree"

// table is one version of a collection. Copying it takes constant time: versions share unchanged
// records (copy on write).
type table[T any] struct {
	records *btree.Map[string, T]
	// holders maps, for each unique index, a value to the key that has it.
	holders []*btree.Map[string, string]
}

func newTable[T any](indexes int) *table[T] {
	t := &table[T]{records: new(btree.Map[string, T])}
	for range indexes {
		t.holders = append(t.holders, new(btree.Map[string, string]))
	}

	return t
}

func (t *table[T]) copy() *table[T] {
	other := &table[T]{
		records: t.records.Copy(),
		holders: make([]*btree.Map[string, string], len(t.holders)),
	}
	for i, holders := range t.holders {
		other.holders[i] = holders.Copy()
	}

	return other
}

// conflict finds an index in which value would collide with another record.
func (t *table[T]) conflict(key string, value T, indexes []index[T]) (name, taken, holder string, found bool) {
	for i, each := range indexes {
		taken = each.key(value)
		if taken == "" {
			continue
		}

		holder, found = t.holders[i].Get(taken)
		if found && holder != key {
			return each.name, taken, holder, true
		}
	}

	return "", "", "", false
}

func (t *table[T]) put(key string, value T, indexes []index[T]) (T, bool) {
	// Load is Set, with a shortcut for a key behind the last one, which is the
	// rule both when a base is read and when ids are ordered by time.
	old, had := t.records.Load(key, value)

	for i, each := range indexes {
		now := each.key(value)

		if had {
			before := each.key(old)
			if before == now {
				continue
			}

			if before != "" {
				t.holders[i].Delete(before)
			}
		}

		if now != "" {
			t.holders[i].Set(now, key)
		}
	}

	return old, had
}

func (t *table[T]) remove(key string, indexes []index[T]) (T, bool) {
	old, had := t.records.Delete(key)
	if !had {
		return old, false
	}

	for i, each := range indexes {
		if before := each.key(old); before != "" {
			t.holders[i].Delete(before)
		}
	}

	return old, true
}

// ascend calls fn for keys behind after, in order, until it returns false.
func (t *table[T]) ascend(after string, fn func(key string, value T) bool) {
	t.records.Ascend(after, func(key string, value T) bool {
		// The tree's pivot is part of its walk.
		return key == after || fn(key, value)
	})
}

func (t *table[T]) lookup(name, value string, indexes []index[T]) (string, T, bool) {
	for i, each := range indexes {
		if each.name != name {
			continue
		}

		key, _ := t.holders[i].Get(value) // no record has the key ""
		record, ok := t.records.Get(key)

		return key, record, ok
	}

	var none T

	return "", none, false
}

package state

import (
	"iter"
	"slices"

	"github.com/tidwall/btree"
)

// table is one version of a collection. Copying it takes constant time: versions share unchanged
// records (copy on write).
type table[T any] struct {
	records *btree.Map[string, T]
	indexes []index[T]
}

// index is a unique index: keys has the key of the record that has a value.
type index[T any] struct {
	name  string
	value func(T) string
	keys  *btree.Map[string, string]
}

func (t *table[T]) copy() *table[T] {
	other := &table[T]{records: t.records.Copy(), indexes: slices.Clone(t.indexes)}
	for i := range other.indexes {
		other.indexes[i].keys = t.indexes[i].keys.Copy()
	}

	return other
}

// Get returns the record of a key.
func (t *table[T]) Get(key string) (T, bool) { return t.records.Get(key) }

// Len is the number of records.
func (t *table[T]) Len() int { return t.records.Len() }

// Ascend returns the records whose key sorts behind after, in the order of keys (bytes); "" starts at the
// first.
func (t *table[T]) Ascend(after string) iter.Seq2[string, T] {
	return func(yield func(string, T) bool) {
		t.records.Ascend(after, func(key string, value T) bool {
			// The tree's pivot is part of its walk.
			return key == after || yield(key, value)
		})
	}
}

// ascendIndex is Ascend by the values of an index.
func (t *table[T]) ascendIndex(index, after string) iter.Seq2[string, T] {
	return func(yield func(string, T) bool) {
		for _, each := range t.indexes {
			if each.name == index {
				each.keys.Ascend(after, func(value, key string) bool {
					record, _ := t.records.Get(key)

					return value == after || yield(value, record)
				})
			}
		}
	}
}

// Lookup finds the record that has value in a unique index.
func (t *table[T]) Lookup(index, value string) (string, T, bool) {
	for _, each := range t.indexes {
		if each.name == index {
			key, _ := each.keys.Get(value) // no record has the key ""
			record, ok := t.records.Get(key)

			return key, record, ok
		}
	}

	var none T

	return "", none, false
}

// conflict finds an index in which value would collide with another record.
func (t *table[T]) conflict(key string, value T) (name, taken, holder string, found bool) {
	for _, each := range t.indexes {
		taken = each.value(value)
		if holder, found = each.keys.Get(taken); found && holder != key {
			return each.name, taken, holder, true
		}
	}

	return "", "", "", false
}

func (t *table[T]) put(key string, value T) (T, bool) {
	// Load is Set, with a shortcut for a key behind the last one, which is the
	// rule both when a base is read and when ids are ordered by time.
	old, had := t.records.Load(key, value)

	for _, each := range t.indexes {
		now := each.value(value)

		if had {
			before := each.value(old)
			if before == now {
				continue
			}

			each.forget(before)
		}

		if now != "" {
			each.keys.Set(now, key)
		}
	}

	return old, had
}

// forget removes a value. For "", which no record has in an index, the tree would copy nodes to find nothing.
func (i *index[T]) forget(value string) {
	if value != "" {
		i.keys.Delete(value)
	}
}

func (t *table[T]) remove(key string) (T, bool) {
	old, had := t.records.Delete(key)
	if had {
		for _, each := range t.indexes {
			each.forget(each.value(old))
		}
	}

	return old, had
}

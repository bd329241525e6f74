// Package recent has a map of limited size that forgets its oldest keys, for what is learned from
// calls.
package recent

import "slices"

// Map is a map that forgets the key that was added first when there are more than its limit. It is
// not safe for concurrent use.
type Map[K comparable, V any] struct {
	limit  int
	values map[K]V
	// order has the keys, the oldest first.
	order []K
}

// NewMap returns an empty map for up to limit keys.
func NewMap[K comparable, V any](limit int) *Map[K, V] {
	return &Map[K, V]{limit: limit, values: map[K]V{}}
}

// Get returns the value of a key, or the zero value.
func (m *Map[K, V]) Get(key K) V { return m.values[key] }

// Put sets the value of a key. A key that is there keeps its age.
func (m *Map[K, V]) Put(key K, value V) {
	if _, known := m.values[key]; !known {
		if len(m.order) == m.limit {
			delete(m.values, m.order[0])
			m.order = m.order[1:]
		}

		m.order = append(m.order, key)
	}

	m.values[key] = value
}

// DeleteValues deletes the keys whose value is to be deleted.
func (m *Map[K, V]) DeleteValues(isDeleted func(value V) bool) {
	m.order = slices.DeleteFunc(m.order, func(key K) bool {
		if !isDeleted(m.values[key]) {
			return false
		}

		delete(m.values, key)

		return true
	})
}

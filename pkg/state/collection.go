package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"unicode/utf8"

	jsonv1 "github.com/go-json-experiment/json/v1"
	"github.com/tidwall/btree"
)

// Collection holds the records of one kind. Its methods see what is durable,
// never wait for a disk and may be called from any goroutine; two calls may
// see two versions. A value that was handed in or out must not be changed.
type Collection[T any] struct {
	writer    *writer
	name      string
	observers []observer[T]
	check     func(key string, record T) error
	prepare   func(key string, record T)

	durable atomic.Pointer[table[T]]
	// latest and dirty are owned by the holder of the store's writer lock.
	latest *table[T]
	dirty  bool
}

type observer[T any] func(key string, old, now T, hadOld, hasNew bool)

// CollectionOption is one of WithIndex, WithObserver, WithCheck and WithPrepare.
type CollectionOption[T any] func(*Collection[T])

// WithIndex adds a unique secondary index: no two records may have the same
// key(record), except for "" which is not indexed. key must depend on nothing
// but the record.
func WithIndex[T any](name string, key func(T) string) CollectionOption[T] {
	return func(c *Collection[T]) {
		c.latest.indexes = append(c.latest.indexes, index[T]{name: name, value: key, keys: new(btree.Map[string, string])})
	}
}

// WithObserver has fn called for each mutation of the latest state and for each
// record at Open: for sums that are derived from records. It runs under the
// writer's lock when a transaction is accepted, and with old and now exchanged
// when the transaction could not be made durable. It must not use the store.
func WithObserver[T any](fn func(key string, old, now T, hadOld, hasNew bool)) CollectionOption[T] {
	return func(c *Collection[T]) {
		c.observers = append(c.observers, fn)
	}
}

// WithCheck has fn called with each record that is put, or was read from disk, and its key. A record
// with an error is not stored: Put fails with ErrRecord. Read from disk it is damage. It must depend
// on nothing but its arguments; several goroutines call it at once.
func WithCheck[T any](fn func(key string, record T) error) CollectionOption[T] {
	return func(c *Collection[T]) { c.check = fn }
}

// WithPrepare has fn called with each record that was read from disk and its key, before
// it is visible: records may be made to share memory. Several goroutines
// call it at once.
func WithPrepare[T any](fn func(key string, record T)) CollectionOption[T] {
	return func(c *Collection[T]) { c.prepare = fn }
}

// Register adds a collection to a store that is not open yet. T is what
// encoding/json reads and writes, usually a pointer to a record that is never
// changed. A second collection of the same name is a programmer's error and
// panics, as does a registration after Open.
func Register[T any](s *Store, name string, opts ...CollectionOption[T]) *Collection[T] {
	s.writer.mu.Lock()
	defer s.writer.mu.Unlock()

	if s.writer.phase != phaseNew {
		panic("state: collection " + name + " is registered after Open")
	}

	if name == "" || s.writer.collections[name] != nil {
		panic("state: collection " + name + " is registered twice or has no name")
	}

	c := &Collection[T]{
		writer: s.writer, name: name, latest: &table[T]{records: new(btree.Map[string, T])},
		check: func(string, T) error { return nil }, prepare: func(string, T) {},
	}
	for _, opt := range opts {
		opt(c)
	}

	c.durable.Store(c.latest.copy())
	s.writer.collections[name] = c

	return c
}

// Get returns the record of a key.
func (c *Collection[T]) Get(key string) (T, bool) { return c.durable.Load().Get(key) }

// Len is the number of records.
func (c *Collection[T]) Len() int { return c.durable.Load().Len() }

// Ascend returns the records whose key sorts behind after, in the order of keys (bytes); "" starts at the
// first. They are those of one version: what changes meanwhile is not seen.
func (c *Collection[T]) Ascend(after string) iter.Seq2[string, T] {
	return c.durable.Load().Ascend(after)
}

// AscendIndex is Ascend by the values of a unique index, which it returns with their records.
func (c *Collection[T]) AscendIndex(index, after string) iter.Seq2[string, T] {
	return c.durable.Load().ascendIndex(index, after)
}

// Lookup finds the record that has value in a unique index.
func (c *Collection[T]) Lookup(index, value string) (string, T, bool) {
	return c.durable.Load().Lookup(index, value)
}

// In returns the collection as a transaction sees it.
func (c *Collection[T]) In(tx *Tx) View[T] { return View[T]{table: c.latest, collection: c, tx: tx} }

// View is a collection within a transaction: the latest state, with what other
// transactions have changed but not made durable yet, and with the changes of
// this one. It must not be used after the transaction's function returned, nor
// changed while Ascend walks it.
type View[T any] struct {
	*table[T]

	collection *Collection[T]
	tx         *Tx
}

// Put inserts or replaces the record of a key. It fails with ErrDuplicate when
// another record has the same value in a unique index and with ErrRecord when
// key or value cannot be stored; after that the transaction will be aborted,
// whatever its function returns.
func (v View[T]) Put(key string, value T) error {
	c := v.collection

	if err := v.tx.usable(c.writer); err != nil {
		return err
	}

	encoded, err := c.encode(key, value)
	if err != nil {
		return v.tx.fail(err)
	}

	put := &change[T]{collection: c, key: key, now: value, hasNew: true, record: encoded}
	put.apply()
	v.tx.changes = append(v.tx.changes, put)

	return nil
}

// encode returns the JSON of a record that can be stored.
func (c *Collection[T]) encode(key string, value T) ([]byte, error) {
	if key == "" || !utf8.ValidString(key) {
		return nil, fmt.Errorf("%w: key %q of %s must be non-empty UTF-8", ErrRecord, key, c.name)
	}

	encoded, err := json.Marshal(value)

	switch {
	case err != nil:
	case string(encoded) == "null":
		err = errNull
	default:
		err = c.check(key, value)
	}

	if err != nil {
		return nil, fmt.Errorf("%w: %s %q: %w", ErrRecord, c.name, key, err)
	}

	if index, taken, holder, found := c.latest.conflict(key, value); found {
		return nil, fmt.Errorf("%w: %s %q of %s %q belongs to %q", ErrDuplicate, index, taken, c.name, key, holder)
	}

	return encoded, nil
}

// Delete removes the record of a key; a missing one is fine.
func (v View[T]) Delete(key string) error {
	c := v.collection
	if err := v.tx.usable(c.writer); err != nil {
		return err
	}

	deletion := &change[T]{collection: c, key: key, record: []byte("null")}
	deletion.apply()

	if deletion.hadOld {
		v.tx.changes = append(v.tx.changes, deletion)
	}

	return nil
}

// change is one mutation, kept until it is durable.
type change[T any] struct {
	collection     *Collection[T]
	key            string
	old, now       T
	hadOld, hasNew bool
	// record is now in JSON.
	record []byte
}

func (ch *change[T]) appendTo(lines []byte, sequence, batch uint64, more bool) []byte {
	return appendChange(lines, sequence, batch, more, ch.collection.name, ch.key, ch.record)
}

// apply makes the change in the latest state.
func (ch *change[T]) apply() {
	c := ch.collection
	if ch.hasNew {
		ch.old, ch.hadOld = c.latest.put(ch.key, ch.now)
	} else {
		ch.old, ch.hadOld = c.latest.remove(ch.key)
	}

	c.dirty = c.dirty || ch.hasNew || ch.hadOld
}

func (ch *change[T]) revert() {
	c := ch.collection
	if ch.hadOld {
		c.latest.put(ch.key, ch.old)
	} else {
		c.latest.remove(ch.key)
	}
}

func (ch *change[T]) redo(tx *Tx) error {
	if ch.hasNew {
		return ch.collection.In(tx).Put(ch.key, ch.now)
	}

	return ch.collection.In(tx).Delete(ch.key)
}

func (ch *change[T]) announce() {
	for _, observe := range ch.collection.observers {
		observe(ch.key, ch.old, ch.now, ch.hadOld, ch.hasNew)
	}
}

func (ch *change[T]) retract() {
	for _, observe := range ch.collection.observers {
		observe(ch.key, ch.now, ch.old, ch.hasNew, ch.hadOld)
	}
}

// The methods below are the store's view of a collection of any type.

func (c *Collection[T]) seal() func() {
	if !c.dirty {
		return nil
	}

	c.dirty = false
	sealed := c.latest.copy()

	return func() { c.durable.Store(sealed) }
}

func (c *Collection[T]) version() version {
	records := c.durable.Load().records
	return version{c.name, records.Len(), func(yield func(string, any) bool) {
		records.Scan(func(key string, value T) bool { return yield(key, value) })
	}}
}

var errNull = errors.New("record is null")

func (c *Collection[T]) decode(key string, encoded []byte) (any, error) {
	// A change to null deletes, and is not decoded. With a space before it, it is none.
	if string(bytes.TrimSpace(encoded)) == "null" {
		return nil, errNull
	}

	var value T

	if err := jsonv1.Unmarshal(encoded, &value); err != nil {
		return nil, fmt.Errorf("record does not fit: %w", err)
	}

	if err := c.check(key, value); err != nil {
		return nil, err
	}

	c.prepare(key, value)

	return value, nil
}

// recover applies one put that was read from disk.
func (c *Collection[T]) recover(key string, decoded any) error {
	value := decoded.(T) //nolint:forcetypeassert // decode returns nothing else

	if index, taken, holder, found := c.latest.conflict(key, value); found {
		return fmt.Errorf("%s %q is %w by %q", index, taken, ErrDuplicate, holder)
	}

	put := change[T]{collection: c, key: key, now: value, hasNew: true}
	put.apply()
	put.announce()

	return nil
}

func (c *Collection[T]) recoverDeleted(key string) {
	deletion := change[T]{collection: c, key: key}
	deletion.apply()

	if deletion.hadOld {
		deletion.announce()
	}
}

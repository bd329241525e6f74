// Package state stores typed records durably: an acknowledged change survives a kill or a power
// failure at any instruction, and the files can be read with jq.
//
// A directory holds state.json (a snapshot of every record), journal.jsonl (the transactions since
// then, one per line), durable.json (the mark, up to where the journal was durable) and lock
// (flock, with the name of its owner). docs/state-format.md describes the format and the rules of
// recovery.
//
// Update runs its function on the latest state, appends one line to the journal and returns after
// fdatasync; concurrent Updates share one. Readers see only durable records and never wait for a
// disk. After a failed write or fsync the store is read-only: the kernel reports such a failure
// once, and a second fsync would succeed without writing. Only for a lack of space does the store
// recover by itself.
//
// The package contains how records are stored, recovered, verified and repaired; the packages above
// define what they mean.
package state

// Package state keeps typed records on disk so that what was acknowledged
// survives a kill -9 or a power cut at any instruction, and so that a person
// can read it with jq.
//
// A directory holds state.json (a snapshot of every record), journal.jsonl (the
// transactions since then, one a line), durable.json (the mark, up to where the
// journal was durable) and lock (flock, naming its owner).
// docs/state-format.md describes the format and the rules of recovery.
//
// An Update runs its function on the latest state, appends one line to the
// journal and returns after fdatasync; Updates that run at the same time share
// one. Readers see only what is durable and never wait for a disk. After a
// failed write or fsync the store is read-only: the kernel reports such a failure
// once, and a second fsync would lie. Only a lack of space is waited for.
//
// What may enter: how records are stored, recovered, verified and repaired.
// What the records mean is the business of the rooms above.
package state

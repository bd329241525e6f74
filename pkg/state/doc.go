// Package state stores typed records durably: an acknowledged change survives a kill at any
// instruction, and a power failure unless it was unsynced; the file can be read with jq.
//
// # Format
//
// A directory has one file with records, the journal state.jsonl. Each line is a JSON object that
// starts with the CRC-32C of all that follows it:
//
//	{"crc32c":"…","format":"touchstone-state","version":1,"sequence":2,"collections":{"volumes":2}}
//	{"crc32c":"…","collection":"volumes","key":"v0","record":{"name":"pvc-0"}}
//	{"crc32c":"…","collection":"volumes","key":"v1","record":{"name":"pvc-1"}}
//	{"crc32c":"…","sequence":3,"batch":3,"collection":"volumes","key":"v2","record":{"name":"pvc-2"}}
//	{"crc32c":"…","sequence":4,"batch":4,"more":true,"collection":"volumes","key":"v0","record":null}
//	{"crc32c":"…","sequence":5,"batch":4,"collection":"volumes","key":"v1","record":{"name":"x"}}
//	{"crc32c":"…","closed":5}
//
// The header is followed by the base: all records as they were after the change of that sequence,
// in the order of their keys. Then follow the changes, numbered without a gap. A transaction ends
// with the first change without "more"; one that does not end was not acknowledged. The file is
// preallocated with newlines. A compaction writes a new journal under another name and renames it.
//
// Beside it are durable.json (the mark: a change that was durable) and lock (flock, with the name
// of its owner). docs/state-format.md has the rules of recovery.
//
// # Guarantees
//
// Update runs its function on the latest state, appends its changes to the journal and returns after
// fdatasync; concurrent Updates share one. Readers see no change of an Update before that, and never
// wait for a disk. UpdateUnsynced does not wait for fdatasync: a power failure may lose its changes,
// but none without all later ones.
//
// Open drops the end of the journal only if it can be an interrupted write of changes that were not
// synced. All else that is missing or differs from what was written is damage: Open
// fails with *DamageError, which names the line, and changes nothing. So is a record that the checks
// and unique indexes of its collection refuse. Verify lists all damage, and Repair keeps what can be
// read.
//
// After a failed sync the store is read-only until a restart: the kernel reports such a failure
// once, and a second fsync would succeed without writing. Only for a lack of space does the store
// recover by itself.
//
// # Files
//
// line.go has the format of a line, journal.go writes, read.go reads lines, tail.go the end of the
// journal and records.go the records; compact.go replaces the journal, commit.go groups transactions;
// verify.go and repair.go work on a directory that no store has open, and read it as Open does. What
// the records mean is defined by the packages above.
package state

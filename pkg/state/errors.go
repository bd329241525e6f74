package state

import (
	"errors"
	"fmt"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

var (
	// ErrReadOnly is returned by every Update after a failed write or fsync, until a restart, or
	// until there is free space again if that was the cause.
	ErrReadOnly = errdefs.New(errdefs.ErrUnavailable, "state is read-only")
	// ErrDuplicate is returned by Put when another record of the collection
	// has the same value in a unique index.
	ErrDuplicate = errors.New("already taken")
	// ErrNotOpen is returned by an Update before Open or after Close.
	ErrNotOpen = errors.New("state is not open")
	// ErrRecord is returned by Put for a key or a value that cannot be stored.
	ErrRecord = errors.New("record cannot be stored")
	// ErrOldFormat is returned for a directory whose format this program does not read.
	ErrOldFormat = errors.New("old format of the state")
	// ErrTransactionOver is returned for the use of a transaction after its function has returned.
	ErrTransactionOver = errors.New("transaction is over")
	// ErrNotRepairable is returned by Repair for a finding that an administrator must resolve.
	ErrNotRepairable = errors.New("damage that repair does not undo")
)

// LockedError is returned by the opening of a state directory that is in use.
type LockedError struct {
	Dir   string
	Owner string
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("state directory %s is in use by %s; stop that first or choose another directory", e.Dir, e.Owner)
}

// DamageError means that state on disk is not what was written there. Nothing is changed on disk,
// and nothing of the state may be trusted.
type DamageError Finding

// What Repair does about damage; it leaves what has no fix to an administrator.
const (
	// fixKeep keeps the records of the base as they read now.
	fixKeep = "keep the records as the file reads now, whatever its checksums say: " +
		"examine the line first, and correct it if necessary"
	// fixDrop drops the line and all that follow, behind the last change before it.
	fixDrop = "keep the changes up to %d and drop this line and all that follow"
	// fixOmit leaves out the record, and no other.
	fixOmit = "drop this record and no other; its data stay in the pool. If a newer program has written it, " +
		"use that one instead; docs/state-format.md says how to correct it"
)

func (e *DamageError) Error() string {
	where := e.File
	if e.Line > 0 {
		where = fmt.Sprintf("%s:%d", e.File, e.Line)
	}
	what, newer := "", ""
	if e.Collection != "" {
		what, newer = fmt.Sprintf("%s %q: ", e.Collection, e.Key), "if a newer program has written it, use that one; otherwise "
	}
	return fmt.Sprintf("%s: state is damaged: %s%s; %ssee `touchstone state verify` and `touchstone state repair`",
		where, what, e.Reason, newer)
}

package state

import "errors"

// Exclusively calls within while the directory of a state, which exists, is locked for this process, as
// by Open. within may remove the directory: a process that waits for the lock then fails. Error:
// *LockedError.
func Exclusively(dir, owner string, within func() error) error {
	file, err := lockForWriting(dir, owner)
	if err != nil {
		return err
	}

	return errors.Join(within(), file.Truncate(0), unlock(file))
}

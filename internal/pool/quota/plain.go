package quota

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// plain makes directories without limits, on a filesystem that supports none. What is about limits does nothing.
type plain struct{ reason string }

func (p plain) Support() Support { return Support{Kind: Plain, Reason: p.reason} }

func (plain) Make(parent *os.Root, name string, mode os.FileMode) error {
	if err := parent.Mkdir(name, mode); err != nil {
		return err
	}

	return setMode(parent, name, mode)
}

// setMode sets the mode of a new directory: the process's umask must not decide who can use it. It
// removes the directory if it fails, because a later call leaves the mode of one that exists.
func setMode(parent *os.Root, name string, mode fs.FileMode) error {
	if err := parent.Chmod(name, mode); err != nil {
		return fmt.Errorf("mode of the directory %s: %w", name, errors.Join(err, parent.Remove(name)))
	}

	return nil
}

func (plain) Limit(*os.File, int64) error { return nil }

func (plain) Confine(*os.File) (bool, error) { return false, nil }

func (plain) Grown() ([]string, error) { return nil, nil }

func (plain) Sweep(context.Context, *os.File) (bool, error) { return false, nil }

func (plain) Usage(*os.File) (Usage, bool, error) { return Usage{}, false, nil }

func (plain) Allocated(*os.File) (int64, bool, error) { return 0, false, nil }

func (plain) CanSnapshot(*os.File) bool { return false }

func (plain) Snapshot(source *os.File, _ *os.Root, _ string) error {
	return fmt.Errorf("snapshot of %s: %w", source.Name(), errors.ErrUnsupported)
}

func (plain) Seal(*os.File) error { return nil }

func (plain) Sync(*os.File) error { return nil }

func (plain) Remove(context.Context, *os.File, string) (bool, error) { return false, nil }

func (plain) RemoveStale(context.Context) error { return nil }

func (plain) Close() error { return nil }

package pool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

const (
	identityVersion = 1
	// identityMode lets a controller without privilege read what a node has made.
	identityMode = 0o644
	// identityBytes bounds what is read of it.
	identityBytes = 4096
)

// ErrIdentity is returned if the directory at a pool's path is not the pool that the state has
// under that name.
var ErrIdentity = errors.New("it is not the pool that the state knows")

// identityFile is the content of the file.
type identityFile struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
}

// identification compares the identity of a pool with the one that the state has.
type identification struct {
	label

	// id is empty for a pool that the state does not have, until it has one.
	id string
}

// Identity returns the identity of a pool that was opened with one required. It is empty for a new pool
// without space to store one.
func (i *identification) Identity() string { return i.id }

// Identify is Identity, but makes the identity of a new pool as soon as there is space. It must not run
// beside itself or Identity.
func (i *identification) Identify() (string, error) {
	if i.id != "" {
		return i.id, nil
	}

	err := i.identify()

	return i.id, err
}

// ReadIdentity returns the identity of the pool in a directory, "" where there is
// none.
func ReadIdentity(directory string) (string, error) {
	root, err := os.OpenRoot(directory)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}

	if err != nil {
		return "", fmt.Errorf("identity of the pool: %w", err)
	}
	defer root.Close()

	return readIdentity(root)
}

// MoveIdentity moves the identity of a pool to another directory, which has none: when a pool
// without volumes becomes an embedded pool.
func MoveIdentity(from, to string) (err error) {
	defer errdefs.Wrapf(&err, "move the identity of a pool")

	outer, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer outer.Close()

	id, err := readIdentity(outer)
	if err != nil {
		return err
	}

	if id != "" {
		inner, err := os.OpenRoot(to)
		if err != nil {
			return err
		}
		defer inner.Close()

		if _, err := makeIdentity(inner, id); err != nil {
			return err
		}

		if err := outer.Remove(layout.Identity); err != nil {
			return err
		}
	}

	// Also if there is none: an earlier call may have removed it and failed here.
	return syncDirectory(outer)
}

// openIdentified opens the directory of a pool and compares its identity with the wanted one, unless that is
// nil. It creates a missing directory unless the pool has an identity already.
func openIdentified(name, directory string, wanted *string) (known identification, err error) {
	opening := makeDirectory
	if wanted != nil && *wanted != "" {
		known.id, opening = *wanted, os.OpenRoot
	}

	known.label, err = labelOf(name, directory, opening)

	switch {
	case known.id != "" && errors.Is(err, fs.ErrNotExist):
		return identification{}, known.mismatch("there is no such directory")
	case err != nil || wanted == nil:
		return known, err
	}

	if err := known.identify(); err != nil {
		return known, errors.Join(err, known.directory.Close())
	}

	return known, nil
}

// identify compares the identity of the pool with the expected one, or makes one.
func (i *identification) identify() error {
	found, err := i.findIdentity()

	switch {
	case err != nil:
		return fmt.Errorf("identity of pool %q: %w", i.name, err)
	case i.id == "":
		i.id = found
	case found == "":
		return i.mismatch("there is no " + layout.Identity)
	case found != i.id:
		return i.mismatch("its " + layout.Identity + " has the identity " + found)
	}

	return nil
}

func (i *identification) mismatch(found string) error {
	return fmt.Errorf("%w: that one has the identity %s, and at %s %s; mount its disk or put its data back, "+
		"or, if its volumes are lost, stop the driver and run `touchstone state forget-pool %s`",
		ErrIdentity, i.id, i.path, found, i.name)
}

// findIdentity returns the pool's identity, made if the state knows none, or "".
func (i *identification) findIdentity() (string, error) {
	found, err := readIdentity(i.directory)
	if err != nil || i.id != "" {
		return found, err
	}

	// Another process may not have made it durable yet, or an earlier call may have failed to.
	if found != "" {
		return found, syncDirectory(i.directory)
	}

	made, err := makeIdentity(i.directory, uuid.NewString())
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		// A full pool is needed to delete its volumes. Identify tries again.
		return "", nil
	}

	return made, err
}

func readIdentity(root *os.Root) (string, error) {
	file, err := tree.OpenIn(root, layout.Identity, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}

	if err != nil {
		return "", err
	}
	defer file.Close()

	text, err := io.ReadAll(io.LimitReader(file, identityBytes))
	if err != nil {
		return "", err
	}

	var read identityFile

	err = json.Unmarshal(text, &read)
	if err == nil && (read.Version != identityVersion || uuid.Validate(read.ID) != nil) {
		err = fmt.Errorf("version %d, id %q: %w", read.Version, read.ID, errors.ErrUnsupported)
	}

	if err != nil {
		return "", fmt.Errorf("%w: read %s: %w", ErrIdentity, file.Name(), err)
	}

	return read.ID, nil
}

// makeIdentity writes an identity durably, unless there is one. Of several processes that do so
// concurrently one succeeds, and all return the identity that it has written.
func makeIdentity(root *os.Root, wanted string) (string, error) {
	text, err := json.Marshal(identityFile{Version: identityVersion, ID: wanted})
	if err != nil {
		return "", err
	}

	aside := "." + layout.Identity + "." + uuid.NewString()
	if err := writeSynced(root, aside, os.O_EXCL, identityMode, text); err != nil {
		return "", err
	}

	if err := errors.Join(moveInto(root, aside, layout.Identity), removeMissing(root, aside)); err != nil {
		return "", err
	}

	if err := syncDirectory(root); err != nil {
		return "", err
	}

	return readIdentity(root)
}

// writeSynced writes a line into a file and syncs it. If that fails it removes the file.
func writeSynced(root *os.Root, name string, flag int, mode uint32, line []byte) error {
	file, err := tree.OpenIn(root, name, os.O_WRONLY|os.O_CREATE|flag, mode)
	if err != nil {
		return err
	}

	_, err = file.Write(append(line, '\n'))
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return errors.Join(err, root.Remove(name))
	}

	return nil
}

// moveInto moves the file to its name, unless another process has done so. On a filesystem without
// RENAME_NOREPLACE it links the file to its name.
func moveInto(root *os.Root, from, to string) error {
	directory, err := root.Open(".")
	if err != nil {
		return err
	}
	defer directory.Close()

	err = unix.Renameat2(int(directory.Fd()), from, int(directory.Fd()), to, unix.RENAME_NOREPLACE)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return nil
	}

	linkErr := root.Link(from, to)
	if linkErr == nil || errors.Is(linkErr, fs.ErrExist) {
		return nil
	}

	return errors.Join(err, linkErr)
}

func removeMissing(root *os.Root, name string) error {
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	return nil
}

func syncDirectory(root *os.Root) error { return tree.InDirectory(root, (*os.File).Sync) }

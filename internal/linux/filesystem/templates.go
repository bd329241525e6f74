package filesystem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Templates makes filesystems, most of them without running mkfs: it keeps what mkfs has written
// for the last ones, and writes the same into the next image of the same size and options, with a
// UUID of its own. It is in memory only, so it never outlives the process. See
// docs/decisions/0040-filesystems-from-templates.md.
//
// The zero value is ready to use. It is safe for concurrent use.
type Templates struct {
	mu sync.Mutex
	// kept has the most recently used one last.
	kept []*template
}

// maxTemplates and maxMemory bound what is kept. A template of maxTemplateBytes is that of an ext4
// of about 500 GiB. One of 64 MiB takes 76 KiB.
const (
	maxTemplates     = 16
	maxMemory        = 16 << 20
	maxTemplateBytes = 8 << 20
)

// templateKey is what the content of a new filesystem depends on.
type templateKey struct {
	filesystem string
	sizeBytes  int64
	options    string
	thick      bool
	// tool and configuration are the versions of the mkfs program and of the file with its
	// defaults.
	tool, configuration fileVersion
}

// fileVersion changes when a file is replaced or written.
type fileVersion struct {
	device, inode    uint64
	size             int64
	modified, status unix.Timespec
}

// Make is fs.Make of a regular file that has only zero bytes.
func (t *Templates) Make(ctx context.Context, fs Filesystem, path string, o MakeOptions) error {
	key, err := newTemplateKey(fs.Name(), path, o)
	if err != nil {
		return fs.Make(ctx, path, o) // reports the cause, such as a missing tool
	}

	if found := t.find(key); found != nil {
		if err := found.write(ctx, path); err != nil {
			return fmt.Errorf("write a new %s to %s: %w", fs.Name(), path, err)
		}

		return nil
	}

	if err := fs.Make(ctx, path, o); err != nil {
		return err
	}

	// Concurrent first calls all run mkfs; the last template stays. A filesystem of which there
	// can be no template is made by mkfs each time.
	if made, err := readTemplate(key, path); err == nil {
		t.keep(made)
	}

	return nil
}

// find returns the template of that key, nil if there is none, and marks it as used.
func (t *Templates) find(key templateKey) *template {
	t.mu.Lock()
	defer t.mu.Unlock()

	i := slices.IndexFunc(t.kept, func(each *template) bool { return each.key == key })
	if i < 0 {
		return nil
	}

	found := t.kept[i]
	t.kept = append(slices.Delete(t.kept, i, i+1), found)

	return found
}

// keep adds a template. It drops one of the same key, those of an older version of the tool and,
// if there is too much, the least recently used ones.
func (t *Templates) keep(made *template) {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.kept = slices.DeleteFunc(t.kept, func(each *template) bool {
		return each.key == made.key || each.key.filesystem == made.key.filesystem &&
			(each.key.tool != made.key.tool || each.key.configuration != made.key.configuration)
	})
	t.kept = append(t.kept, made)

	size := 0

	for i, each := range slices.Backward(t.kept) {
		size += each.size()
		if size > maxMemory || len(t.kept)-i > maxTemplates {
			t.kept = slices.Delete(t.kept, 0, i+1)

			return
		}
	}
}

// newTemplateKey returns the key of what mkfs would make now.
func newTemplateKey(name, path string, o MakeOptions) (templateKey, error) {
	row, known := typeByName(name)
	if !known {
		return templateKey{}, ErrUnknown
	}

	info, err := os.Stat(path)
	if err != nil {
		return templateKey{}, err
	}

	if !info.Mode().IsRegular() {
		return templateKey{}, errors.ErrUnsupported
	}

	key := templateKey{
		filesystem: name, sizeBytes: info.Size(), thick: o.NoLazyInit,
		options: fmt.Sprintf("%d %q", cmp.Or(o.BlockSize, defaultBlockSize), o.Options),
	}

	tool, err := Tool{Name: row.tools[0]}.Find()
	if err != nil {
		return key, err
	}

	if key.tool, err = readVersion(tool); err != nil || row.mkfsConfiguration == "" {
		return key, err
	}

	key.configuration, err = readVersion(row.mkfsConfiguration)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}

	return key, err
}

func readVersion(path string) (fileVersion, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return fileVersion{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}

	return fileVersion{
		device: uint64(stat.Dev), //nolint:unconvert // its type depends on the architecture
		inode:  stat.Ino, size: stat.Size, modified: stat.Mtim, status: stat.Ctim,
	}, nil
}

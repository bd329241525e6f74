package leftover

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/touchstone-csi/touchstone/internal/linux/btrfs"
	"github.com/touchstone-csi/touchstone/internal/linux/projectquota"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

// InPool returns the ids of the volumes and snapshots in the directory of a pool.
func InPool(pool string) (Objects, error) { return objectsIn(pool, layout.VolumeDirectories()) }

// Removing returns the ids of what a pool is still removing.
func Removing(pool string) (Objects, error) {
	return objectsIn(pool, []string{layout.Removing, filepath.Join(layout.Ephemeral, layout.Removing)})
}

func objectsIn(pool string, directories []string) (Objects, error) {
	objects := Objects{}

	for _, directory := range directories {
		names, err := list(filepath.Join(pool, directory))
		if err != nil {
			return nil, err
		}

		for _, name := range names {
			objects[strings.TrimSuffix(name, layout.ImageSuffix)] = true
		}
	}

	return objects, nil
}

// list returns the names in a directory, none if there is no directory.
func list(directory string) ([]string, error) {
	entries, err := os.ReadDir(directory)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list a directory of the driver: %w", err)
	}

	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}

	return names, nil
}

// Entries returns the entries of a pool without mounts that no object explains. Known are the objects
// of the controller's state; nil means that the pool belongs to a controller elsewhere.
func Entries(pool string, known func(id string) bool) ([]Finding, error) {
	var found []Finding

	objects, err := InPool(pool)
	if err != nil {
		return nil, err
	}

	for directory, has := range map[string]func(name string) bool{
		layout.Images: known, layout.Directories: known, layout.Snapshots: known,
		layout.Scratch: no, layout.Removing: no, layout.Mutable: func(id string) bool { return objects[id] },
	} {
		for _, at := range []string{directory, filepath.Join(layout.Ephemeral, directory)} {
			if at != directory {
				has = no
			}

			if has == nil {
				continue
			}

			names, err := list(filepath.Join(pool, at))
			if err != nil {
				return nil, err
			}

			for _, name := range names {
				id := strings.TrimSuffix(strings.TrimSuffix(name, layout.ImageSuffix), layout.MutableSuffix)
				if !has(id) {
					found = append(found, Finding{Entry, filepath.Join(pool, at, name)})
				}
			}
		}
	}

	return sorted(found), nil
}

// Assignments returns the entries of a directory for direct volumes: a volume that is not staged has none.
func Assignments(root string) ([]Finding, error) {
	names, err := list(root)

	found := make([]Finding, 0, len(names))
	for _, name := range names {
		found = append(found, Finding{Entry, filepath.Join(root, name)})
	}

	return found, err
}

func no(string) bool { return false }

// Quotas returns the quota groups and the limits of projects on the filesystem of a pool that belong
// to no directory of the pool. The filesystem must be the pool's alone.
func Quotas(pool string) ([]Finding, error) {
	directory, err := os.Open(pool)
	if err != nil {
		return nil, fmt.Errorf("open the pool: %w", err)
	}
	defer directory.Close()

	is, err := btrfs.IsFilesystem(directory)
	if err != nil {
		return nil, err
	}

	if is {
		return groups(pool, directory)
	}

	if enforced, err := projectquota.Enforced(directory); err != nil || !enforced {
		return nil, nil // a filesystem without quotas
	}

	return projects(pool, directory)
}

// abandoned is the limit of a group that is removed once nothing uses its space (internal/pool/quota).
const abandoned = 1<<62 + 1

// groups returns the quota groups of volumes without their subvolume. Those of the kernel, of level 0,
// remain until a removed subvolume's space is free.
func groups(pool string, directory *os.File) ([]Finding, error) {
	id, err := btrfs.UUID(directory)
	if err != nil {
		return nil, err
	}

	quotas := btrfs.QuotasOf(id)
	if mode, err := quotas.Mode(); err != nil || mode == btrfs.QuotaOff {
		return nil, err
	}

	existing := map[uint64]bool{}
	err = each(pool, func(opened *os.File) error {
		if is, err := btrfs.IsSubvolume(opened); err != nil || !is {
			return err
		}

		number, err := btrfs.ID(opened)
		existing[number] = true

		return err
	})

	var all []btrfs.Group
	if err == nil {
		all, err = btrfs.Groups(directory)
	}

	var found []Finding

	for _, group := range all {
		if group.Level() != 1 || existing[group.Number()] {
			continue
		}

		if counted, err := quotas.Read(group); err == nil && counted.Limit != abandoned {
			found = append(found, Finding{Quota, fmt.Sprintf("quota group %s in %s", group, pool)})
		}
	}

	return sorted(found), err
}

// projects returns the limits of projects without their directory.
func projects(pool string, directory *os.File) ([]Finding, error) {
	existing := map[uint32]bool{}
	err := each(pool, func(opened *os.File) error {
		member, err := projectquota.MembershipOf(opened)
		existing[member.Project] = true

		return err
	})
	if err != nil {
		return nil, err
	}

	var found []Finding

	for project, err := range projectquota.All(directory, 1) {
		if err != nil {
			return nil, err
		}

		if project.Limit != (projectquota.Amount{}) && !existing[project.ID] {
			found = append(found, Finding{Quota, fmt.Sprintf("limit of project %d in %s", project.ID, pool)})
		}
	}

	return sorted(found), nil
}

// each calls visit with each directory of a volume or snapshot in the pool, also one that is being
// made or removed.
func each(pool string, visit func(*os.File) error) error {
	for _, at := range append(layout.VolumeDirectories(), layout.Scratch, layout.Removing) {
		names, err := list(filepath.Join(pool, at))
		if err != nil {
			return err
		}

		for _, name := range names {
			opened, err := os.Open(filepath.Join(pool, at, name))
			if err != nil {
				return fmt.Errorf("open an object: %w", err)
			}

			if info, statErr := opened.Stat(); statErr == nil && info.IsDir() {
				err = visit(opened)
			}

			if err := errors.Join(err, opened.Close()); err != nil {
				return err
			}
		}
	}

	return nil
}

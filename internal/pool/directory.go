package pool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/pool/quota"
)

// EnsureDirectory creates the volume's directory if it is missing, and limits its size where the
// filesystem supports that. It never lowers the limit of an existing directory.
func (p *Pool) EnsureDirectory(id string, size int64) error {
	if err := checkID(id); err != nil {
		return err
	}

	err := p.quotas.Make(p.directories, id, volumeRootMode)
	if err == nil || errors.Is(err, fs.ErrExist) {
		err = p.LimitDirectory(id, size)
	}

	if err != nil {
		return p.spaceError(fmt.Errorf("make directory of volume %s: %w", id, err))
	}

	return nil
}

// LimitDirectory raises the size limit of a volume's directory, where it can have one. It is
// durable after SyncDirectory. Errors: ErrMissing.
func (p *Pool) LimitDirectory(id string, size int64) (err error) {
	directory, err := p.OpenDirectory(id)
	if err != nil {
		return err
	}
	defer directory.Close()
	defer errdefs.Wrapf(&err, "limit the size of volume %s in pool %q", id, p.name)

	if err := p.quotas.Limit(directory, size); err != nil {
		return err
	}

	return p.confine(id, directory)
}

// ConfineDirectory makes the size limit of a volume's directory count all files in it and no others.
// LimitEvadedFor reports what it has found. Errors: ErrMissing.
func (p *Pool) ConfineDirectory(id string) error {
	directory, err := p.OpenDirectory(id)
	if err != nil {
		return err
	}
	defer directory.Close()

	return p.confine(id, directory)
}

func (p *Pool) confine(id string, directory *os.File) error {
	evaded, err := p.quotas.Confine(directory)
	if evaded {
		p.evaded.Store(id, time.Now())
	}

	if err != nil {
		return fmt.Errorf("confine volume %s in pool %q to its size limit: %w", id, p.name, err)
	}

	return nil
}

// ConfineGrown is ConfineDirectory for the directories in which something was made since the last call
// that may evade their limits; the first call is for all. It returns the volumes that LimitEvadedFor
// reports from now on.
func (p *Pool) ConfineGrown() (evaded []string, err error) {
	names, err := p.quotas.Grown()
	if err != nil {
		return nil, fmt.Errorf("what is new in pool %q: %w", p.name, err)
	}

	for _, name := range names {
		if !volume.IsID(name) {
			continue
		}

		for _, each := range p.withEphemeral() {
			failure := each.ConfineDirectory(name)
			if !errors.Is(failure, ErrMissing) {
				err = errors.Join(err, failure)
			}

			if each.LimitEvadedFor(name) > 0 {
				evaded = append(evaded, name)
			}
		}
	}

	return evaded, err
}

// Sweep has size limits count what only a walk of all files finds, as in a pool with projects. Errors
// of one directory do not keep the others from being swept. It returns volumes as ConfineGrown does.
func (p *Pool) Sweep(ctx context.Context) (evaded []string, err error) {
	if p.quotas.Support().Kind != quota.Project {
		return nil, nil
	}

	for _, each := range p.withEphemeral() {
		failure := listIDs(ctx, each.directories, "", func(id string) error {
			found, failure := each.sweep(ctx, id)
			if found {
				evaded = append(evaded, id)
			}

			if !errors.Is(failure, ErrMissing) {
				err = errors.Join(err, failure)
			}

			return ctx.Err()
		})
		err = errors.Join(err, failure)
	}

	return evaded, err
}

func (p *Pool) sweep(ctx context.Context, id string) (bool, error) {
	directory, err := p.OpenDirectory(id)
	if err != nil {
		return false, err
	}
	defer directory.Close()

	evaded, err := p.quotas.Sweep(ctx, directory)
	if evaded {
		p.evaded.Store(id, time.Now())
	}

	if err != nil {
		return evaded, fmt.Errorf("confine volume %s in pool %q to its size limit: %w", id, p.name, err)
	}

	return evaded, nil
}

// withEphemeral returns the pool, and the one inside of it if that is in use.
func (p *Pool) withEphemeral() []*Pool {
	p.ephemeralMu.Lock()
	defer p.ephemeralMu.Unlock()

	if p.ephemeral == nil {
		return []*Pool{p}
	}

	return []*Pool{p, p.ephemeral}
}

// RemoveStaleQuotas releases what the kernel keeps for the limits of removed directories, once their
// space is not in use elsewhere any more: the kernel does not.
func (p *Pool) RemoveStaleQuotas(ctx context.Context) error {
	if err := p.quotas.RemoveStale(ctx); err != nil {
		return fmt.Errorf("release quotas of pool %q: %w", p.name, err)
	}

	return nil
}

// LimitEvaded is the finding of a volume while LimitEvadedFor is above 0.
const LimitEvaded = "files in it have evaded its size limit, which counts them again; find the program that does it"

// evasionHold is for how long LimitEvadedFor returns what was found: what it was cannot be seen later.
const evasionHold = 10 * time.Minute

// LimitEvadedFor returns for how long it is still reported that files of the volume have evaded its
// size limit; 0 if they have not.
func (p *Pool) LimitEvadedFor(id string) time.Duration {
	at, found := p.evaded.Load(id)
	if !found {
		return 0
	}

	last, _ := at.(time.Time)

	return max(0, evasionHold-time.Since(last))
}

// SyncDirectory makes the name of the volume's directory and its size limit durable.
func (p *Pool) SyncDirectory(id string) error {
	directory, err := p.OpenDirectory(id)
	if err != nil {
		return err
	}
	defer directory.Close()

	if err := p.quotas.Sync(directory); err != nil {
		return p.spaceError(fmt.Errorf("sync the directory of volume %s in pool %q: %w", id, p.name, err))
	}

	return p.syncDirectory(p.directories)
}

// OpenDirectory opens the root of a directory-backed volume without following a symlink. Errors:
// ErrMissing.
func (p *Pool) OpenDirectory(id string) (*os.File, error) {
	return p.open(Object{ID: id, Backing: volume.BackingDirectory})
}

// DirectoryQuota returns the limit of a volume's directory and its usage, as the kernel counts it.
// It takes the same time for any number of files, and counts what has evaded the limit. It returns false if the size of the directory is
// not limited. Errors: ErrMissing.
func (p *Pool) DirectoryQuota(id string) (quota.Usage, bool, error) {
	directory, err := p.OpenDirectory(id)
	if err != nil {
		return quota.Usage{}, false, err
	}
	defer directory.Close()

	if err := p.confine(id, directory); err != nil {
		return quota.Usage{}, false, err
	}

	usage, limited, err := p.quotas.Usage(directory)
	if err != nil {
		return quota.Usage{}, false, fmt.Errorf("usage of volume %s in pool %q: %w", id, p.name, err)
	}

	return usage, limited, nil
}

// DirectorySupport returns how the sizes of new directories are limited, and whether they are copied
// at one point in time.
func (p *Pool) DirectorySupport() quota.Support { return p.quotas.Support() }

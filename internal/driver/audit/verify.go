package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/embedded"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

// Verify reads a state directory and compares the pools with it, given by name,
// without changing anything. It fails when the state or a pool cannot be read,
// as while a driver uses it: with *state.LockedError, pool.ErrControllerRunning,
// embedded.ErrNotMounted, ErrNoPool or ErrNotComparable.
func Verify(ctx context.Context, stateDir string, pools map[string]string) (Report, error) {
	return withPools(ctx, stateDir, pools, (*pool.Inspection).LockForReading, func(*comparison) error { return nil })
}

// comparison compares pools with a state.
type comparison struct {
	*Pools

	opened  map[string]*pool.Inspection
	records *records
	// mismatched are the names of pools that are not those that the state knows.
	mismatched map[string]bool
}

// withPools compares the pools with the state and calls then with the result. Lock keeps controllers
// from using the pools until it returns.
func withPools(ctx context.Context, stateDir string, pools map[string]string,
	lock func(*pool.Inspection) error, then func(*comparison) error,
) (Report, error) {
	opened, err := openPools(pools, lock)

	defer func() {
		for _, each := range opened {
			_ = each.Close()
		}
	}()

	if err != nil {
		return Report{}, err
	}

	known := newRecords()
	visit := known.addRecord

	if len(pools) == 0 {
		visit = nil
	}

	found, err := NewStore(stateDir, "verify").Verify(visit) //nolint:contextcheck // it is short
	report := Report{Report: found}

	if err != nil || !found.Clean() || len(pools) == 0 {
		return report, err
	}

	if err := known.checkOfController(stateDir, found.Records); err != nil {
		return report, err
	}

	compared := &comparison{
		Pools:  &Pools{Compared: map[string]string{}, Findings: []Finding{}, Notes: []Note{}},
		opened: opened, records: known, mismatched: map[string]bool{},
	}
	if err := compared.compare(ctx); err != nil {
		return report, err
	}

	report.Pools = compared.Pools

	return report, then(compared)
}

// openPools opens pools without creating or changing anything, and locks them, which a driver needs
// before it reads its state. It returns what it has opened also with an error.
func openPools(directories map[string]string, lock func(*pool.Inspection) error) (map[string]*pool.Inspection, error) {
	opened := make(map[string]*pool.Inspection, len(directories))

	for _, name := range slices.Sorted(maps.Keys(directories)) {
		where, err := locate(directories[name])
		if err != nil {
			return opened, fmt.Errorf("pool %q: %w", name, err)
		}

		found, err := pool.Inspect(name, where)
		if err != nil {
			return opened, err
		}

		opened[name] = found

		if err := lock(found); err != nil {
			return opened, err
		}
	}

	return opened, nil
}

// locate returns the directory of the pool, mounted for an embedded one.
func locate(directory string) (string, error) {
	absolute, err := filepath.Abs(directory)
	if err != nil {
		return "", fmt.Errorf("%s: %w", directory, err)
	}

	where, err := embedded.Locate(absolute)
	if err != nil {
		return "", err
	}

	// Otherwise a mistyped directory would be an empty pool.
	if _, err := os.Stat(filepath.Join(where, layout.Images)); err != nil {
		return "", fmt.Errorf("%s: %w: %w", where, ErrNoPool, err)
	}

	return where, nil
}

func (c *comparison) compare(ctx context.Context) error {
	for _, name := range slices.Sorted(maps.Keys(c.opened)) {
		p := c.opened[name]
		c.Compared[name] = p.Path()

		same, err := c.compareIdentity(p)
		if err != nil {
			return err
		}

		// Compared with another pool, each record would be lost and each object an orphan.
		if !same {
			c.mismatched[name] = true

			continue
		}

		if err := c.findOrphans(ctx, p); err != nil {
			return err
		}

		if err := c.findScratch(ctx, p); err != nil {
			return err
		}
	}

	c.findLost()

	slices.SortFunc(c.Findings, func(a, b Finding) int { return cmp.Compare(a.Path, b.Path) })
	slices.SortFunc(c.Notes, func(a, b Note) int { return cmp.Compare(a.Path, b.Path) })

	for _, name := range slices.Sorted(maps.Keys(c.records.pools)) {
		if _, given := c.Compared[name]; !given {
			c.note(name, fmt.Sprintf("the state has %d volumes and snapshots in this pool, which were not looked for: give --pool %s=DIRECTORY, too",
				c.records.pools[name], name))
		}
	}

	return nil
}

// compareIdentity reports whether the pool has the identity that the state has for its name, and adds
// a finding if not.
func (c *comparison) compareIdentity(p *pool.Inspection) (bool, error) {
	known := c.records.identities[p.Name()]

	found, err := p.ReadIdentity()
	if err != nil {
		return false, fmt.Errorf("pool %q: %w", p.Name(), err)
	}

	if known == "" || found == known {
		return true, nil
	}

	c.Findings = append(c.Findings, Finding{
		Kind: Mismatch, Pool: p.Name(), Path: p.Path(),
		Reason: fmt.Sprintf("the state knows pool %s by the identity %s, and this one has %q", p.Name(), known, found),
		Advice: "mount its disk or put its data back; if its volumes are lost, run `touchstone state forget-pool " + p.Name() + "`",
	})

	return false, nil
}

func (c *comparison) note(path, reason string) { c.Notes = append(c.Notes, Note{path, reason}) }

func (c *comparison) findOrphans(ctx context.Context, p *pool.Inspection) (err error) {
	defer errdefs.Wrapf(&err, "look for orphans")

	return p.List(ctx, func(found pool.Object) error {
		here := object{found, p.Name()}
		if c.records.objects[found.ID].object == here {
			return nil
		}

		return c.orphan(ctx, p, here)
	})
}

// orphan adds a finding for an object without a record.
func (c *comparison) orphan(ctx context.Context, p *pool.Inspection, here object) error {
	usage, err := p.Usage(ctx, here.Object)
	if errors.Is(err, pool.ErrMissing) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("%s: %w", here, err)
	}

	found := Finding{
		Kind: Orphan, Pool: p.Name(), Path: p.ObjectPath(here.Object), ID: here.ID, Bytes: usage.Bytes,
		Reason: "the state does not know this " + describe(here), object: here,
	}

	if there, ok := c.records.objects[here.ID]; ok {
		found.Reason += fmt.Sprintf(": it has it as a %s in pool %q", describe(there.object), there.pool)
	}

	switch empty := here.IsEmpty(usage); {
	case empty && !here.Snapshot:
		found.Fix = "remove it, since it holds no data; so does the next start of the driver"
	case !here.Backing.HasFilesystem():
		found.Advice = "see what is in it, and move or remove it by hand"
	default:
		found.Advice = "see what is in it (blkid; mount -o loop,ro, with norecovery or noload where it is to stay as it is), " +
			"and move or remove it by hand"
	}

	c.Findings = append(c.Findings, found)

	return nil
}

func describe(o object) string {
	what := map[bool]string{false: "volume", true: "snapshot"}[o.Snapshot]

	return what + "'s " + string(o.Backing)
}

func (c *comparison) findScratch(ctx context.Context, p *pool.Inspection) (err error) {
	defer errdefs.Wrapf(&err, "look for leftovers")

	err = p.ListScratch(ctx, func(left pool.ScratchObject) error {
		if left.InProgress {
			c.note(left.Path, "a node is making this at the moment")

			return nil
		}

		c.Findings = append(c.Findings, Finding{
			Kind: Scratch, Pool: p.Name(), Path: left.Path, ID: left.ID, Bytes: left.Bytes,
			Reason: "this was being made when a driver ended, and has no name in the pool yet",
			Fix:    "remove it; so does the next start of a driver of mode node or all",
		})

		return nil
	})

	return errors.Join(err, p.ListForeign(ctx, func(path string) error {
		c.note(path, "this is none of Touchstone's; it is left alone")

		return nil
	}))
}

// findLost adds a finding for each record whose object is missing in its pool.
func (c *comparison) findLost() {
	for _, wanted := range c.records.objects {
		p, given := c.opened[wanted.pool]
		if !wanted.required || !given || c.mismatched[wanted.pool] {
			continue
		}

		if _, err := p.Lstat(wanted.Object); !errors.Is(err, pool.ErrMissing) {
			continue
		}

		c.Findings = append(c.Findings, Finding{
			Kind: Lost, Pool: wanted.pool, Path: p.ObjectPath(wanted.Object), ID: wanted.ID,
			Reason: "the state has this " + describe(wanted.object) + ", which is not there", object: wanted.object,
			Advice: "put it back from where it was moved to, or from a backup; or delete the " +
				map[bool]string{false: "volume", true: "snapshot"}[wanted.Snapshot] + " by its orchestrator",
		})
	}
}

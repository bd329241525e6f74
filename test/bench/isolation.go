package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
)

// isolation shows what a call on one volume costs while another one does I/O.
func isolation(ctx context.Context, b *bench) error {
	stall, err := newStall(b.dir)
	if err != nil {
		return err
	}

	d, done, err := b.start(ctx, "PATH="+stall.dir+":"+os.Getenv("PATH"))
	if err != nil {
		return err
	}
	defer done()

	quiet, err := d.staged(ctx, "quiet", nil)
	if err != nil {
		return err
	}

	if err := b.beside(ctx, d, quiet, "nothing else going on"); err != nil {
		return err
	}

	if err := b.besideFormat(ctx, d, quiet, stall); err != nil {
		return err
	}

	return b.besideThick(ctx, d, quiet)
}

// beside measures calls on the quiet volume.
func (b *bench) beside(ctx context.Context, d *driver, quiet *csiclient.Publication, what string) error {
	const gets, publications = 2000, 300

	getting, _, err := timed(ctx, 1, gets, func(ctx context.Context, _ int) error { return d.get(ctx, quiet.VolumeID) })
	if err != nil {
		return err
	}

	publishing, _, err := d.republish(ctx, quiet, publications)
	if err != nil {
		return err
	}

	b.results.put("With "+what+", ControllerGetVolume of another volume: p99", getting.quantile(0.99), known("ms"))
	b.results.put("With "+what+", NodePublishVolume of another volume: p99", publishing.quantile(0.99), known("ms"))

	return nil
}

func (b *bench) besideFormat(ctx context.Context, d *driver, quiet *csiclient.Publication, stall *stall) error {
	if err := stall.arm(); err != nil {
		return err
	}

	// Of other options than all volumes before, so that mkfs runs.
	busy, err := d.claim(ctx, "stalled", map[string]string{"mkfsOptions": "-m 1"})
	if err == nil {
		err = d.Attach(ctx, busy)
	}

	if err != nil {
		return err
	}

	staged := make(chan error, 1)

	go func() { staged <- d.Stage(ctx, busy) }()

	err = stall.begun(ctx)
	if err == nil {
		err = b.beside(ctx, d, quiet, "mkfs of a volume stalled")
	}

	// Whatever happened, the wrapper must not wait for ever.
	return errors.Join(err, stall.end(), <-staged)
}

// thickBytes is what one thick volume takes.
const thickBytes = 2 << 30

func (b *bench) besideThick(ctx context.Context, d *driver, quiet *csiclient.Publication) error {
	over := make(chan struct{})
	group, ctx := errgroup.WithContext(ctx)

	group.Go(func() error {
		for number := 0; ; number++ {
			select {
			case <-over:
				return nil
			default:
			}

			made, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{
				Name: fmt.Sprint("thick ", number), Parameters: map[string]string{"provisioning": "thick"},
				VolumeCapabilities: []*csi.VolumeCapability{mountable()},
				CapacityRange:      &csi.CapacityRange{RequiredBytes: thickBytes},
			})
			if err != nil {
				return err
			}

			if err := d.delete(ctx, made.GetVolume().GetVolumeId()); err != nil {
				return err
			}
		}
	})
	group.Go(func() error {
		defer close(over)

		return b.beside(ctx, d, quiet, "thick 2 GiB volumes coming and going")
	})

	return group.Wait()
}

// stall is a mkfs.ext4 that waits for a signal to continue.
type stall struct{ dir string }

const wrapper = `#!/bin/sh
if [ -e %[1]s/armed ]; then
	rm %[1]s/armed
	read -r _ < %[1]s/release
fi
PATH=${PATH#*:} exec mkfs.ext4 "$@"
`

func newStall(dir string) (*stall, error) {
	made, err := os.MkdirTemp(dir, "stall-")
	if err == nil {
		err = unix.Mkfifo(filepath.Join(made, "release"), 0o600)
	}

	if err == nil {
		err = os.WriteFile(filepath.Join(made, "mkfs.ext4"), fmt.Appendf(nil, wrapper, made), 0o700)
	}

	if err != nil {
		return nil, fmt.Errorf("make a mkfs that stalls: %w", err)
	}

	return &stall{made}, nil
}

// arm makes the next mkfs wait.
func (s *stall) arm() error { return os.WriteFile(filepath.Join(s.dir, "armed"), nil, 0o600) }

// begun returns once it does.
func (s *stall) begun(ctx context.Context) error {
	for {
		if _, err := os.Stat(filepath.Join(s.dir, "armed")); errors.Is(err, os.ErrNotExist) {
			return nil
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for mkfs: %w", ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

// end lets it go on.
func (s *stall) end() error {
	return os.WriteFile(filepath.Join(s.dir, "release"), []byte("\n"), 0)
}

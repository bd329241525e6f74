package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	conditions "github.com/touchstone-csi/touchstone/internal/health"
)

const (
	checkedBytes     = 10 * gib
	checkedFiles     = 3 * 1024 // of a MiB each
	checkWriters     = 2
	checkWritesPause = 2 * time.Millisecond
	checkCount       = 50
)

// onlineChecks measures what writers notice while the filesystem that they write
// to is checked.
func (b *bench) onlineChecks(ctx context.Context) error {
	d, done, err := b.start(ctx, embedded, "TOUCHSTONE_POOL_IMAGE_FS="+b.poolFS)
	if err != nil {
		return err
	}
	defer done()

	claim, err := d.made(ctx, "checked", checkedBytes, nil, mountable())
	if err == nil {
		err = d.bringUp(ctx, claim)
	}

	if err == nil {
		err = fillFiles(filepath.Join(d.seen(claim.TargetPath), "data"), checkedFiles)
	}

	if err != nil {
		return err
	}

	writers := make([]*writer, checkWriters)
	group, together := errgroup.WithContext(ctx)
	over := make(chan struct{})

	for i := range writers {
		writers[i] = &writer{path: filepath.Join(d.seen(claim.TargetPath), fmt.Sprint("written ", i))}

		group.Go(func() error { return writers[i].write(over) })
	}

	var checking, resting []span

	group.Go(func() (err error) {
		defer close(over)

		checking, resting, err = checkOften(together, d, claim)

		return err
	})

	if err := group.Wait(); err != nil {
		return err
	}

	b.putStalls(writers, checking, resting)

	return d.takeDown(ctx, claim)
}

// putStalls reports the longest wait of any writer in each check, and in a time as
// long just before it.
func (b *bench) putStalls(writers []*writer, checking, resting []span) {
	during, before, checks := &sample{}, &sample{}, &sample{}

	for i := range checking {
		during.took = append(during.took, longestIn(writers, checking[i]))
		before.took = append(before.took, longestIn(writers, resting[i]))
		checks.took = append(checks.took, checking[i].end.Sub(checking[i].begin))
	}

	const what = "Online check of a 10 GiB ext4 with 3 GiB of data"

	b.results.put(what+": p50", checks.quantile(0.5), known("ms"))
	b.results.put("… longest wait of a writer during a check: p50", during.quantile(0.5), known("ms"))
	b.results.put("… longest wait of a writer during a check: p99", during.quantile(0.99), atMost(200, "ms"))
	b.results.put("… longest wait of a writer during all checks", during.quantile(1), known("ms"))
	b.results.put("… longest wait in a time as long without a check: p50", before.quantile(0.5), known("ms"))
	b.results.put("… longest wait in a time as long without a check: p99", before.quantile(0.99), known("ms"))
}

// checkOften returns when checks ran, and as long a time before each.
func checkOften(ctx context.Context, d *driver, claim *csiclient.Publication) (checking, resting []span, err error) {
	length := time.Second

	for range checkCount {
		rest := span{begin: time.Now()}
		if err := pause(ctx, length); err != nil {
			return nil, nil, err
		}

		rest.end = time.Now()
		check := span{begin: rest.end}

		if err := checkOnline(ctx, d, claim.VolumeID); err != nil {
			return nil, nil, err
		}

		check.end = time.Now()
		length = check.end.Sub(check.begin)

		checking, resting = append(checking, check), append(resting, rest)
	}

	return checking, resting, nil
}

// checkOnline checks a volume as `touchstone check --online` does.
func checkOnline(ctx context.Context, d *driver, id string) error {
	found, err := conditions.NewClient(d.Conn()).Check(ctx, conditions.CheckRequest{VolumeID: id, How: "online"})
	if err == nil && found.Verdict != "clean" {
		err = fmt.Errorf("%w: %s: %s", errNotClean, found.Verdict, found.Detail)
	}

	return err
}

var errNotClean = errors.New("the filesystem is not clean")

// span is a time.
type span struct{ begin, end time.Time }

// write is one that took long enough to be of interest.
type write struct {
	began time.Time
	took  time.Duration
}

// writer is a program that waits for the disk after each of its writes.
type writer struct {
	path string
	done []write
}

func (w *writer) write(over <-chan struct{}) (failure error) {
	file, err := os.OpenFile(w.path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("write beside checks: %w", err)
	}

	defer func() { failure = errors.Join(failure, file.Close()) }()

	const length = 16 * mib

	block := make([]byte, 4096)

	for at := int64(0); ; at = (at + int64(len(block))) % length {
		select {
		case <-over:
			return nil
		case <-time.After(checkWritesPause):
		}

		began := time.Now()

		_, err := file.WriteAt(block, at)
		if err == nil {
			err = file.Sync()
		}

		if err != nil {
			return fmt.Errorf("write beside checks: %w", err)
		}

		w.done = append(w.done, write{began, time.Since(began)})
	}
}

// longestIn returns how long the longest write took that was under way within
// the span.
func longestIn(writers []*writer, within span) time.Duration {
	var longest time.Duration

	for _, each := range writers {
		first, _ := slices.BinarySearchFunc(each.done, within.begin, func(w write, at time.Time) int {
			return w.began.Add(w.took).Compare(at)
		})

		for _, w := range each.done[first:] {
			if w.began.After(within.end) {
				break
			}

			longest = max(longest, w.took)
		}
	}

	return longest
}

// fillFiles makes files of a MiB each, a hundred to a directory.
func fillFiles(root string, count int) error {
	const each = 100

	data := make([]byte, mib)

	for number := range count {
		directory := filepath.Join(root, strconv.Itoa(number/each))
		for i := range data {
			data[i] = byte(i*7 + i>>12 + number)
		}

		err := os.MkdirAll(directory, 0o755)
		if err == nil {
			err = os.WriteFile(filepath.Join(directory, strconv.Itoa(number%each)), data, 0o600)
		}

		if err != nil {
			return fmt.Errorf("fill the volume: %w", err)
		}
	}

	return nil
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/touchstone-csi/touchstone/internal/driver/identities"
	"github.com/touchstone-csi/touchstone/test/metrics"
)

// residue is what a driver has, and would have more and more of if it leaked.
type residue struct {
	goroutines, descriptors, watches int
	rss                              float64 // MiB
	// missed and failures are the events that came too late or not at all, and
	// how often a source of events has failed.
	missed, failures float64
}

func (r residue) String() string {
	return fmt.Sprintf("missed events %.0f, source errors %.0f; driver: %d goroutines, %d fds, %d watches, RSS %.1f MiB",
		r.missed, r.failures, r.goroutines, r.descriptors, r.watches, r.rss)
}

// The driver's metrics that are read.
const (
	goroutines   = "go_goroutines"
	rssBytes     = "process_resident_memory_bytes"
	missedEvents = "touchstone_health_missed_events_total"
	sourceErrors = "touchstone_health_source_errors_total"
)

func (s *soak) readResidue() (residue, error) {
	values, err := metrics.Read(context.Background(), s.http)
	if err != nil {
		return residue{}, err
	}

	sums := map[string]float64{}

	for _, name := range []string{goroutines, rssBytes, missedEvents, sourceErrors} {
		if sums[name], err = values.Sum(name, ""); err != nil {
			return residue{}, err
		}
	}

	r := residue{
		goroutines: int(sums[goroutines]), rss: sums[rssBytes] / mib,
		missed: sums[missedEvents], failures: sums[sourceErrors],
	}

	proc := "/proc/" + strconv.Itoa(s.command.Process.Pid)

	descriptors, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		return r, fmt.Errorf("read the driver's resources: %w", err)
	}

	r.descriptors = len(descriptors)

	for _, each := range descriptors {
		text, err := os.ReadFile(filepath.Join(proc, "fdinfo", each.Name()))
		if err == nil {
			// A line each (proc_pid_fdinfo(5)).
			r.watches += bytes.Count(text, []byte("\ninotify wd:")) + bytes.Count(text, []byte("\nfanotify mnt_id:")) +
				bytes.Count(text, []byte("\nfanotify ino:")) + bytes.Count(text, []byte("\nfanotify sdev:"))
		}
	}

	return r, nil
}

// compare waits until the driver has no more than it had before, and returns
// what it has kept all the same.
func (s *soak) compare(before residue) []string {
	const waitLimit, oftenest = 30 * time.Second, 100 * time.Millisecond

	for began := time.Now(); ; time.Sleep(oftenest) {
		after, err := s.readResidue()
		if err != nil {
			return []string{err.Error()}
		}

		left, err := s.left()
		if err != nil {
			return []string{err.Error()}
		}

		left = append(left, after.growthSince(before)...)
		if len(left) == 0 || time.Since(began) > waitLimit {
			fmt.Fprintln(s.out, "after:", after)

			return left
		}
	}
}

func (r residue) growthSince(before residue) []string {
	// A few come and go: connections, the collector, a relist.
	const few = 8

	var grown []string

	for _, each := range []struct {
		what        string
		before, now int
	}{
		{"goroutines", before.goroutines, r.goroutines}, {"fds", before.descriptors, r.descriptors}, {"watches", before.watches, r.watches},
	} {
		if each.now > each.before+few {
			grown = append(grown, fmt.Sprintf("%s: %d, there were %d before all those lives", each.what, each.now, each.before))
		}
	}

	return grown
}

// left returns the devices, mounts and files that are there without any volume,
// and what the driver still reports about volumes.
func (s *soak) left() ([]string, error) {
	var left []string

	report, err := s.report(context.Background())
	if err != nil {
		return nil, err
	}

	for _, each := range report.Volumes {
		left = append(left, "still in the report: "+each.ID)
	}

	devices, err := s.devices()
	if err != nil {
		return nil, err
	}

	for _, each := range devices {
		left = append(left, each.Path+" is attached to "+each.BackingPath)
	}

	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(s.kubelet()))
	if err != nil {
		return nil, fmt.Errorf("look for mounts: %w", err)
	}

	for _, each := range mounts {
		left = append(left, "still mounted: "+each.Mountpoint)
	}

	for _, directory := range s.pools() {
		files, err := filesIn(directory)
		if err != nil {
			return nil, err
		}

		left = append(left, files...)
	}

	return left, nil
}

// filesIn returns the files in the directories of a pool.
func filesIn(directory string) ([]string, error) {
	var found []string

	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		// It may be just going.
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}

		depth := strings.Count(strings.TrimPrefix(path, directory), "/")
		if err != nil || depth == 0 || depth == 1 || filepath.Base(filepath.Dir(path)) == "ephemeral" {
			return err
		}

		found = append(found, "still there: "+path)

		if entry.IsDir() {
			return filepath.SkipDir
		}

		return nil
	})

	return found, err
}

// stateLeft returns what the state still knows, and what is damaged in it.
func (s *soak) stateLeft(ctx context.Context) []string {
	words := []string{"state", "verify", "--state-dir", s.state()}
	for name, directory := range s.pools() {
		words = append(words, "--pool", name+"="+directory)
	}

	var left []string

	if output, err := exec.CommandContext(ctx, s.binary, words...).CombinedOutput(); err != nil {
		left = append(left, fmt.Sprintf("state verify: %v: %s", err, output))
	}

	records, err := s.records(ctx)
	if err != nil {
		return append(left, err.Error())
	}

	return append(left, records...)
}

// panics returns what the driver has logged of defects that it caught.
func (s *soak) panics() []string {
	text, err := os.ReadFile(s.log())
	if err != nil {
		return []string{err.Error()}
	}

	var found []string

	for line := range bytes.Lines(text) {
		if bytes.Contains(line, []byte("panic")) {
			found = append(found, string(bytes.TrimSpace(line)))
		}
	}

	return found
}

// records returns those that the state has though there is no volume.
func (s *soak) records(ctx context.Context) ([]string, error) {
	output, err := exec.CommandContext(ctx, s.binary, "state", "dump", "--state-dir", s.state()).Output()
	if err != nil {
		return nil, fmt.Errorf("dump the state: %w", err)
	}

	var dump struct {
		Collections map[string]map[string]json.RawMessage `json:"collections"`
	}

	if err := json.Unmarshal(output, &dump); err != nil {
		return nil, fmt.Errorf("dump the state: %w", err)
	}

	var left []string

	for collection, records := range dump.Collections {
		if collection == identities.Collection {
			continue // pools outlive their volumes
		}

		for key, record := range records {
			left = append(left, fmt.Sprintf("still in %s: %s: %.200s", collection, key, record))
		}
	}

	return left, nil
}

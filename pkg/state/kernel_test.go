package state_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

// onDisk returns an operation of a new store of the directory.
func onDisk(run func(f fixture) error) syscallfault.Operation {
	return func(directory string) (func() error, func() error, error) {
		return func() error {
				return run(newFixture(filepath.Join(directory, "state"), state.Options{Owner: "a test"}))
			},
			func() error { return nil }, nil
	}
}

// onceOperations are what a program does with a state directory of the kernel's, not of a machine's.
var onceOperations = map[string]syscallfault.Operation{
	"life": onDisk(func(f fixture) error {
		if err := f.Open(context.Background()); err != nil {
			return err
		}

		return errors.Join(f.put("w", &volume{}), f.Compact(context.Background()), f.put("x", &volume{}), f.Close())
	}),
	"verify": onDisk(func(f fixture) error {
		visited := 0
		report, err := f.Verify(func(string, string, json.RawMessage) error {
			visited++

			return nil
		})
		if err != nil {
			return err
		}

		return errors.Join(syscallfault.Differs("visited", 6, visited), syscallfault.Differs("clean", true, report.Clean()))
	}),
	"dump": onDisk(func(f fixture) error {
		var out bytes.Buffer
		if err := f.Dump(&out); err != nil {
			return err
		}

		return syscallfault.Differs("records", 6, strings.Count(out.String(), "pvc-"))
	}),
	"repair": onDisk(func(f fixture) error {
		done, err := f.Repair()
		if err != nil {
			return err
		}

		// An earlier attempt may have repaired it.
		return syscallfault.Differs("clean before", len(done.Backups) == 0, done.Before.Clean())
	}),
	"exclusively": func(directory string) (run, end func() error, err error) {
		return func() error {
			return state.Exclusively(filepath.Join(directory, "state"), "a test", func() error { return nil })
		}, func() error { return nil }, nil
	},
}

// TestEachCallFailsOnce has each system call fail once that is made in a state directory. It is reported.
// The next store has all records.
func TestEachCallFailsOnce(t *testing.T) {
	t.Parallel()

	// A copy and a removal are tried in another way, MkdirAll and Rename ask first, an older mark is valid, and a lock need not name its owner.
	unreported := `^(copy_file_range |unlinkat |fstatat state/state.jsonl#|pwrite64 state/(durable.json|lock)#|ftruncate state/lock#`

	syscallfault.EachOperationFailsOnce(t, onceOperations, func(name string) *syscallfault.Case {
		ofLife := ""
		if name == "life" {
			ofLife = "|fstatat state#1$"
		}

		return &syscallfault.Case{
			Causes: true, Reported: []string{""},
			Lossy:      []string{".", "state/lock", "state/durable.json", "state/state.jsonl.damaged-1"},
			Unreported: regexp.MustCompile(unreported + ofLife + ")"),
			Prepare: func(t *testing.T, directory string) {
				t.Helper()
				require.NoError(t, os.Rename(example(t), filepath.Join(directory, "state")))

				if name == "repair" {
					dir := filepath.Join(directory, "state")
					write(t, dir, strings.Replace(journalText(t, dir), "pvc-1", "pvc-9", 1))
				}
			},
			Verify: func(t *testing.T, directory string) {
				t.Helper()
				require.Subset(t, keys(open(t, filepath.Join(directory, "state"), state.Options{})), []string{"v0", "v1", "v2", "v3", "v4", "v5"})
			},
		}
	})
}

package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/onsi/ginkgo/v2/types"
)

// total prints how many specs have passed in one of the reports at least: no
// file can claim all, since what one kind of volume has another can't have.
func total(out io.Writer, paths []string) error {
	if len(paths) == 0 {
		return errors.New("usage: judge total with the paths of reports")
	}

	passed := map[string]bool{}
	failed := 0

	for _, path := range paths {
		reports, err := readReports(path)
		if err != nil {
			return err
		}

		for _, report := range reports {
			for _, spec := range report.SpecReports {
				name, ours := nameOf(spec)

				switch {
				case spec.State.Is(types.SpecStateFailureStates):
					failed++
				case ours && spec.State == types.SpecStatePassed:
					passed[name] = true
				}
			}
		}
	}

	if _, err := fmt.Fprintf(out, "%d specs passed in one of %d runs at least, %d failures\n", len(passed), len(paths), failed); err != nil {
		return fmt.Errorf("printing the total: %w", err)
	}

	if failed > 0 || len(passed) == 0 {
		return errNotWell
	}

	return nil
}

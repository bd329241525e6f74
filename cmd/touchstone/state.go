package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/touchstone-csi/touchstone/pkg/state"
)

var errFindings = errors.New("the state is damaged")

func newStateCommand() *cobra.Command {
	var (
		directory string
		asJSON    bool
	)

	command := &cobra.Command{
		Use:   "state",
		Short: "Verify, dump or repair a state directory while no driver uses it",
		Args:  cobra.ArbitraryArgs,
		RunE: func(command *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError(command, fmt.Errorf("%w: there is no command %q", errUsage, args[0]))
			}

			return command.Help()
		},
	}
	command.PersistentFlags().StringVar(&directory, "state-dir", "/var/lib/touchstone/state", "the state directory")

	verify := &cobra.Command{
		Use:   "verify",
		Short: "Say what is damaged; exits 0 when nothing is, 1 with findings, 2 when it cannot be read",
		Args:  noArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return verifyState(command.OutOrStdout(), directory, asJSON)
		},
	}
	verify.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")

	command.AddCommand(
		verify,
		&cobra.Command{
			Use:   "dump",
			Short: "Print every record as one JSON document",
			Args:  noArgs,
			RunE: func(command *cobra.Command, _ []string) error {
				return damageOrCannot(state.Dump(directory, command.OutOrStdout()))
			},
		},
		&cobra.Command{
			Use:   "repair",
			Short: "Put right what verify named and can be put right; the files as they were are kept beside",
			Args:  noArgs,
			RunE:  func(command *cobra.Command, _ []string) error { return repairState(command.OutOrStdout(), directory) },
		},
	)

	return command
}

func verifyState(out io.Writer, directory string, asJSON bool) error {
	// A mistyped directory would else be a clean, empty state.
	if _, err := os.Stat(directory); err != nil {
		return exitWith(exitCannot, fmt.Errorf("state-dir: %w", err))
	}

	report, err := state.Verify(directory)
	if err != nil {
		return exitWith(exitCannot, err)
	}

	if asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")

		if err := encoder.Encode(report); err != nil {
			return exitWith(exitCannot, fmt.Errorf("print the report: %w", err))
		}
	} else {
		printReport(out, report)
	}

	if !report.Clean() {
		return exitWith(exitNotWell, fmt.Errorf("%w: %d findings in %s", errFindings, len(report.Findings), directory))
	}

	return nil
}

func printReport(out io.Writer, report state.Report) {
	for _, finding := range report.Findings {
		printFinding(out, "damage", finding)
	}

	for _, note := range report.Notes {
		printFinding(out, "note", note)
	}

	for _, name := range slices.Sorted(maps.Keys(report.Records)) {
		fmt.Fprintf(out, "%d %s\n", report.Records[name], name)
	}

	if report.Clean() {
		fmt.Fprintf(out, "%s is clean up to transaction %d\n", report.Dir, report.Sequence)
	}
}

func printFinding(out io.Writer, kind string, finding state.Finding) {
	where := finding.File
	if finding.Line > 0 {
		where = fmt.Sprintf("%s:%d", finding.File, finding.Line)
	}

	fmt.Fprintf(out, "%s: %s: %s\n", kind, where, finding.Reason)

	if finding.Fix != "" {
		fmt.Fprintf(out, "  repair: %s\n", finding.Fix)
	}
}

func repairState(out io.Writer, directory string) error {
	done, err := state.Repair(directory)

	switch {
	case errors.Is(err, state.ErrNotRepairable):
		return exitWith(exitNotWell, err)
	case err != nil:
		return exitWith(exitCannot, err)
	case done.Before.Clean():
		fmt.Fprintf(out, "%s is clean: nothing to repair\n", directory)

		return nil
	}

	printReport(out, done.Before)

	for _, backup := range done.Backups {
		fmt.Fprintf(out, "as it was: %s\n", backup)
	}

	fmt.Fprintf(out, "%s is repaired\n", directory)

	return nil
}

// damageOrCannot gives damage code 1 and whatever else keeps the state from
// being read code 2.
func damageOrCannot(err error) error {
	if errors.As(err, new(*state.DamageError)) {
		return exitWith(exitNotWell, err)
	}

	return exitWith(exitCannot, err)
}

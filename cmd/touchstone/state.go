package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/touchstone-csi/touchstone/internal/driver/audit"
	"github.com/touchstone-csi/touchstone/internal/driver/setting"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

var (
	errFindings = errors.New("the state is damaged")
	errPools    = errors.New("the pools do not match the state")
)

// stateFlags are the flags of the subcommands.
type stateFlags struct {
	directory string
	pools     map[string]string
	asJSON    bool
}

func newStateCommand() *cobra.Command { //nolint:funlen // one literal a command
	given := &stateFlags{}
	command := &cobra.Command{
		Use:   "state",
		Short: "Verify, dump or repair a state directory while no driver uses it",
		Args:  cobra.ArbitraryArgs,
		RunE: func(command *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError(command, fmt.Errorf("%w: unknown command %q", errUsage, args[0]))
			}

			return command.Help()
		},
	}
	command.PersistentFlags().StringVar(&given.directory, "state-dir", "/var/lib/touchstone/state", "the state directory")
	command.PersistentFlags().Var(setting.Map(&given.pools, nil, "NAME=DIRECTORY", nil), "pool",
		"a pool to be compared with the state, as NAME=DIRECTORY (repeatable); dump needs none")

	verify := &cobra.Command{
		Use:   "verify",
		Short: "Report damage; exits 0 without findings, 1 with findings, 2 if the state cannot be read",
		Long: `Say what is damaged in the state and, with --pool, what is in the pools that the
state does not know, and what it knows that is not there. Nothing is changed.
Exits 0 without findings, 1 with findings, 2 when something cannot be read.`,
		Args: noArgs,
		RunE: given.verify,
	}
	verify.Flags().BoolVar(&given.asJSON, "json", false, "print the report as JSON")

	command.AddCommand(
		verify,
		&cobra.Command{
			Use:   "dump",
			Short: "Print every record as one JSON document",
			Args:  noArgs,
			RunE: func(command *cobra.Command, _ []string) error {
				return damageOrCannot(audit.NewStore(given.directory, "dump").Dump(command.OutOrStdout()))
			},
		},
		&cobra.Command{
			Use:   "repair",
			Short: "Put right what verify named and can be put right; the files as they were are kept beside",
			Long: `Put right what verify named and can be put right. Of the state's files, those as
they were are kept beside. From the pools that --pool names only what is empty
and what was being made is removed, never data.`,
			Args: noArgs,
			RunE: given.repair,
		},
		&cobra.Command{
			Use:   "forget-pool NAME",
			Short: "Remove the identity of a lost pool; the next start takes the one that it finds",
			Long: `Forget the identity of a pool whose volumes are lost. The next start of the
driver takes the pool that it finds at that name, or makes one. Until then every
call for the pool's volumes is refused; afterwards those that are not in the pool
are reported as missing, and can be deleted by their orchestrator.`,
			Args: cobra.MatchAll(func(command *cobra.Command, args []string) error {
				if len(args) != 1 {
					return usageError(command, fmt.Errorf("%w: give the name of one pool", errUsage))
				}

				return nil
			}),
			RunE: func(command *cobra.Command, args []string) error {
				if err := audit.ForgetPool(command.Context(), given.directory, args[0]); err != nil {
					return exitWith(exitCannot, err)
				}

				_, err := fmt.Fprintf(command.OutOrStdout(), "pool %s is forgotten: the next start takes the one that it finds\n", args[0])

				return err
			},
		},
	)

	return command
}

func (f *stateFlags) verify(command *cobra.Command, _ []string) error {
	report, err := audit.Verify(command.Context(), f.directory, f.pools)
	if err != nil {
		return exitWith(exitCannot, err)
	}

	out := command.OutOrStdout()

	if f.asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")

		if err := encoder.Encode(report); err != nil {
			return exitWith(exitCannot, fmt.Errorf("print the report: %w", err))
		}
	} else {
		audit.PrintState(out, report.Report)
		audit.PrintPools(out, report, len(f.pools) > 0)
	}

	return exitWith(exitNotWell, findings(f.directory, report))
}

// findings returns an error with the number of findings, nil without any.
func findings(directory string, report audit.Report) error {
	switch {
	case !report.Report.Clean():
		return fmt.Errorf("%w: %d findings in %s", errFindings, len(report.Findings), directory)
	case !report.Clean():
		return fmt.Errorf("%w: %d findings", errPools, len(report.Pools.Findings))
	default:
		return nil
	}
}

func (f *stateFlags) repair(command *cobra.Command, _ []string) error {
	out := command.OutOrStdout()

	clean, err := repairState(out, f.directory)
	if err != nil || len(f.pools) == 0 {
		return err
	}

	if !clean {
		fmt.Fprintln(out, "note: the pools were not repaired, because verify could not compare them: run it again")

		return nil
	}

	return repairPools(command.Context(), out, f.directory, f.pools)
}

// repairState reports whether the state was clean.
func repairState(out io.Writer, directory string) (bool, error) {
	done, err := audit.NewStore(directory, "repair").Repair()

	switch {
	case errors.Is(err, state.ErrNotRepairable):
		return false, exitWith(exitNotWell, err)
	case err != nil:
		return false, exitWith(exitCannot, err)
	case done.Before.Clean():
		fmt.Fprintf(out, "%s is clean: nothing to repair\n", directory)

		return true, nil
	}

	audit.PrintState(out, done.Before)

	for _, backup := range done.Backups {
		fmt.Fprintf(out, "as it was: %s\n", backup)
	}

	fmt.Fprintf(out, "%s is repaired\n", directory)

	return false, nil
}

func repairPools(ctx context.Context, out io.Writer, directory string, pools map[string]string) error {
	done, err := audit.Repair(ctx, directory, pools)

	for _, finding := range done.Removed {
		fmt.Fprintf(out, "removed: %s\n", finding.Path)
	}

	if err != nil {
		return exitWith(exitCannot, err)
	}

	for _, finding := range done.Left {
		finding.Print(out)

		if finding.Fix != "" {
			fmt.Fprintln(out, "  it is in use, or not empty any more: not done")
		}
	}

	if len(done.Left) > 0 {
		return exitWith(exitNotWell, fmt.Errorf("%w: %d findings are left for a person", errPools, len(done.Left)))
	}

	fmt.Fprintf(out, "the pools match the state: %d leftovers removed\n", len(done.Removed))

	return nil
}

// damageOrCannot returns exit code 1 for damage and 2 for other errors.
func damageOrCannot(err error) error {
	if errors.As(err, new(*state.DamageError)) {
		return exitWith(exitNotWell, err)
	}

	return exitWith(exitCannot, err)
}

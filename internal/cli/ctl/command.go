package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
)

const (
	defaultEndpoint = "unix:///run/touchstone/csi.sock"
	endpointVar     = "TOUCHSTONE_ENDPOINT"
	// SpecEndpointVariable is the environment variable that the spec defines (CSI v1.13,
	// General Configuration).
	SpecEndpointVariable = "CSI_ENDPOINT"
	// defaultTimeout lets a mkfs or a check of a large volume finish.
	defaultTimeout = 2 * time.Minute
)

var errUnknownCommand = errors.New("unknown command")

// settings are the flags of all commands.
type settings struct {
	endpoint string
	output   outputFormat
	timeout  time.Duration
	watch    bool
}

// NewCommand returns `ctl` with all its subcommands. Its errors have the exit code as
// ExitCode; the caller prints them.
func NewCommand() *cobra.Command {
	given := &settings{output: outputTable}

	command := group("ctl", "Talk to a CSI driver through its socket",
		newVolumeCommand(given),
		newSnapshotCommand(given),
		newGroupCommand(given),
		group("node", "The node behind the socket", newNodeInfoCommand(given), newStorageHealthCommand(given)),
		newCapabilitiesCommand(given),
		newCapacityCommand(given),
		newOperationsCommand(given),
		newDirectVolumesCommand(given),
		newDoctorCommand(given),
	)
	command.Long = `Talk to a CSI driver through its socket, as an orchestrator would: any driver,
though the defaults are Touchstone's. Exit code 0: done, 1: the driver refused
or cannot be reached, 2: wrong usage. Those of "volume health", "node health" and
"doctor" are their own.`
	command.SilenceErrors = true
	command.SilenceUsage = true

	given.define(command.PersistentFlags(), defaultTimeout)
	_ = command.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputFormats, cobra.ShellCompDirectiveNoFileComp))
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })

	return command
}

func (s *settings) define(flags *pflag.FlagSet, timeout time.Duration) {
	flags.StringVar(&s.endpoint, "endpoint", defaultEndpoint, "the driver's socket (environment: "+endpointVar+" or "+SpecEndpointVariable+")")
	flags.VarP(&s.output, "output", "o", "table or wide for people, json or yaml for programs, name for names only")
	flags.DurationVar(&s.timeout, "timeout", timeout, "give up after this time; 0 never does")
}

// group is a command that only contains others. By default, cobra prints help and succeeds
// for a misspelt subcommand.
func group(name, short string, children ...*cobra.Command) *cobra.Command {
	command := &cobra.Command{
		Use:                        name,
		Short:                      short,
		SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				similar := ""
				if found := cmd.SuggestionsFor(args[0]); len(found) > 0 {
					similar = "; did you mean " + found[0] + "?"
				}

				return usage(fmt.Errorf("%w %q%s; see %s --help", errUnknownCommand, args[0], similar, cmd.CommandPath()))
			}

			return cmd.Help()
		},
	}
	command.AddCommand(children...)

	return command
}

// session is one run of one command.
type session struct {
	*csiclient.Client
	*printer

	args []string
	// side receives progress, separate from the answer.
	side io.Writer
}

// endpointOf returns the endpoint of the flag, else of the environment.
func (s *settings) endpointOf(cmd *cobra.Command) string {
	if cmd.Flags().Changed("endpoint") {
		return s.endpoint
	}

	return cmp.Or(os.Getenv(endpointVar), os.Getenv(SpecEndpointVariable), s.endpoint)
}

// limit gives a command its deadline.
func (s *settings) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx == nil {
		ctx = context.Background()
	}

	if s.timeout > 0 && !s.watch {
		return context.WithTimeout(ctx, s.timeout)
	}

	return ctx, func() {}
}

// verb returns a command that is one session with the driver.
func (s *settings) verb(
	use, short string, args cobra.PositionalArgs, run func(ctx context.Context, s *session) error,
) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: args, RunE: s.inSession(run)}
}

// inSession gives a command its connection and its deadline.
func (s *settings) inSession(run func(ctx context.Context, s *session) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, cancel := s.limit(cmd.Context())
		defer cancel()

		co, err := csiclient.Connect(s.endpointOf(cmd))
		if err != nil {
			return usage(err)
		}

		return explainConnection(ctx, s.endpointOf(cmd), errors.Join(
			run(ctx, &session{
				Client:  co,
				printer: &printer{out: cmd.OutOrStdout(), format: s.output, watch: s.watch},
				args:    args,
				side:    cmd.ErrOrStderr(),
			}),
			co.Close(),
		))
	}
}

// onVolume is a verb with one volume, by name or id, as its argument.
func (s *settings) onVolume(name, short string, run func(ctx context.Context, s *session) error) *cobra.Command {
	cmd := s.verb(name+" VOLUME", short, exactly(1), naming(names.Volume, 0, 1, run))
	cmd.ValidArgsFunction = completeNames(s, names.Volume, 0, 0)

	return cmd
}

// aliased gives a command further names.
func aliased(cmd *cobra.Command, others ...string) *cobra.Command {
	cmd.Aliases = others

	return cmd
}

func exactly(count int) cobra.PositionalArgs { return asUsage(cobra.ExactArgs(count)) }

func atLeast(count int) cobra.PositionalArgs { return asUsage(cobra.MinimumNArgs(count)) }

func asUsage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usage(fmt.Errorf("%w: %s", err, cmd.UseLine()))
		}

		return nil
	}
}

// markRequired makes flags required. Cobra's own required flags return an error that cannot be
// distinguished from the driver's.
func markRequired(cmd *cobra.Command, names ...string) {
	check := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return err
		}

		for _, name := range names {
			if !cmd.Flags().Changed(name) {
				return usage(fmt.Errorf("%w: --%s", errMissingFlag, name))
			}
		}

		return nil
	}
}

var errMissingFlag = errors.New("a flag is missing")

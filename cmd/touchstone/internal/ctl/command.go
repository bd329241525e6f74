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

	"github.com/touchstone-csi/touchstone/internal/csiclient"
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
	wait     time.Duration
	// watch and pageSize are flags of lists, progress is one of copies.
	watch    bool
	pageSize int32
	progress time.Duration
}

// NewCommand returns `ctl` with all its subcommands. Its errors have the exit code as
// ExitCode; the caller prints them.
func NewCommand() *cobra.Command {
	given := &settings{output: outputTable}

	volumes := given.group("volume", "Make, use, grow and delete volumes",
		createVerb(), volumeDeletion(), volumeListVerb(), volumeVerb(), expandVerb(), modifyVerb(),
		publishVerb(), unpublishVerb(), statsVerb(), healthVerb(), mountVerb(), umountVerb())
	volumes.Aliases = []string{"volumes", "vol"}

	snapshots := given.group("snapshot", "Take, list, restore and delete snapshots, and see what changed between them",
		snapshotCreateVerb(), snapshotListVerb(), snapshotVerb(), snapshotDeletion(), restoreVerb(), blocksVerb())
	snapshots.Aliases = []string{"snapshots", "snap"}

	command := given.group("ctl", "Talk to a CSI driver through its socket", capabilitiesVerb(), capacityVerb(), operationsVerb(),
		violationsVerb(), leaksVerb())
	command.AddCommand(
		volumes,
		snapshots,
		given.group("group", "Snapshots of several volumes at one moment", groupCreateVerb(), groupVerb(), groupDeletion()),
		given.group("node", "The node behind the socket", nodeInfoVerb(), storageHealthVerb()),
		given.group("direct-volumes", "Volumes that virtual machines mount themselves", directVolumesVerb()),
		newCallsCommand(given),
		newFaultCommand(given),
		newDoctorCommand(given),
	)
	command.Long = `Talk to a CSI driver through its socket, as an orchestrator would: any driver,
though the defaults are Touchstone's. Exit code 0: done, 1: the driver refused
or cannot be reached, 2: wrong usage. Those of "volume health", "node health" and
"doctor" are their own.`
	command.SilenceErrors = true
	command.SilenceUsage = true

	given.define(command.PersistentFlags(), defaultTimeout)
	completeFlags(command)
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })

	return command
}

func (s *settings) define(flags *pflag.FlagSet, timeout time.Duration) {
	flags.StringVar(&s.endpoint, "endpoint", defaultEndpoint, "the driver's socket (environment: "+endpointVar+" or "+SpecEndpointVariable+")")
	flags.VarP(&s.output, "output", "o", "table or wide for people, json or yaml for programs, name for names only")
	flags.DurationVar(&s.timeout, "timeout", timeout, "give up after this time; 0 never does")
	flags.DurationVar(&s.wait, "wait", 0, "wait so long for a driver that is starting, such as 10s")
}

// group is a command that only contains others. By default, cobra prints help and succeeds
// for a misspelt subcommand.
func (s *settings) group(name, short string, verbs ...verb) *cobra.Command {
	command := &cobra.Command{
		Use:                        name,
		Short:                      short,
		SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}

			similar := ""
			if found := cmd.SuggestionsFor(args[0]); len(found) > 0 {
				similar = "; did you mean " + found[0] + "?"
			}

			return usage(fmt.Errorf("%w %q%s; see %s --help", errUnknownCommand, args[0], similar, cmd.CommandPath()))
		},
	}
	for _, each := range verbs {
		command.AddCommand(each.command(s))
	}

	return command
}

// driver is what several commands ask the driver.
type driver struct{ *csiclient.Client }

// session is one run of one command.
type session struct {
	driver
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
	if s.timeout > 0 && !s.watch {
		return context.WithTimeout(ctx, s.timeout)
	}

	return ctx, func() {}
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

		if err = s.awaitDriver(ctx, co); err == nil {
			err = run(ctx, &session{
				driver:  driver{co},
				printer: &printer{settings: s, out: cmd.OutOrStdout()},
				args:    args,
				side:    cmd.ErrOrStderr(),
			})
		}

		return explainConnection(ctx, s.endpointOf(cmd), errors.Join(err, co.Close()))
	}
}

// awaitDriver waits for a driver that is starting, with --wait.
func (s *settings) awaitDriver(ctx context.Context, co *csiclient.Client) error {
	if s.wait <= 0 {
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, s.wait)
	defer cancel()

	return co.WaitReady(ctx)
}

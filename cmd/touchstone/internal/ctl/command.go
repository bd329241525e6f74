package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
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

var errBadEndpoint = errors.New("must be a socket's path, such as /run/touchstone/csi.sock, or HOST:PORT")

// settings are the flags of all commands.
type settings struct {
	endpoint string
	output   string
	timeout  time.Duration
	wait     time.Duration
	// watch and pageSize are flags of lists, progress is one of copies. Nothing that is watched has a deadline.
	watch    bool
	pageSize int32
	progress time.Duration
}

// NewCommand returns `ctl` with all its subcommands. Its errors have the exit code as
// ExitCode; the caller prints them.
func NewCommand() *cobra.Command {
	given := &settings{}
	all := allVerbs(given)

	command := all.command(given)
	command.AddCommand(newDoctorCommand(given))
	given.define(command.PersistentFlags(), defaultTimeout)
	given.completeFlags(command)

	return reportsErrors(command)
}

// allVerbs returns `ctl` with all its verbs.
func allVerbs(given *settings) verb {
	return verb{
		name: "ctl", short: "Talk to a CSI driver through its socket",
		long: `Talk to a CSI driver through its socket, as an orchestrator would: any driver,
though the defaults are Touchstone's. Exit code 0: done, 1: the driver refused
or cannot be reached, 2: wrong usage. Those of "volume health", "node health" and
"doctor" are their own.`,
		verbs: []verb{
			capabilitiesVerb, capacityVerb(), violationsVerb(), leaksVerb,
			{name: string(names.Volume), aliases: []string{"volumes", "vol"}, short: "Make, use, grow and delete volumes", verbs: []verb{
				createVerb(), volumeDeletion(), volumeListVerb, volumeVerb, expandVerb(), modifyVerb(),
				publishVerb(), unpublishVerb(), statsVerb(), healthVerb(), mountVerb(), umountVerb(), rescueVerb,
			}},
			{
				name: "operation", aliases: []string{"operations"}, verbs: operationVerbs,
				short: "Long copies: see, await and cancel them (Touchstone only)",
			},
			{
				name: "snapshot", aliases: []string{"snapshots", "snap"},
				short: "Take, list, restore and delete snapshots, and see what changed between them",
				verbs: []verb{snapshotCreateVerb(), snapshotListVerb(), snapshotVerb, snapshotDeletion(), restoreVerb(), blocksVerb()},
			},
			{name: "group", short: "Snapshots of several volumes at one moment", verbs: []verb{groupCreateVerb(), groupVerb(), groupDeletion()}},
			{name: "node", short: "The node behind the socket", verbs: []verb{nodeInfoVerb, storageHealthVerb}},
			{name: "direct-volumes", short: "Volumes that virtual machines mount themselves", verbs: []verb{directVolumesVerb}},
			callsVerb(given),
			{name: "fault", short: "Fault rules, by which calls fail on purpose (--faults, --enable-faults)", verbs: faultVerbs},
		},
	}
}

// reportsErrors has the caller print a command's errors, which are those of the usage, too.
func reportsErrors(command *cobra.Command) *cobra.Command {
	command.SilenceErrors, command.SilenceUsage = true, true
	command.SetFlagErrorFunc(FlagError)

	return command
}

func (s *settings) define(flags *pflag.FlagSet, timeout time.Duration) {
	flags.StringVar(&s.endpoint, "endpoint", defaultEndpoint, "the driver's socket (environment: "+endpointVar+" or "+SpecEndpointVariable+")")
	flags.VarP(outputFormat(&s.output), "output", "o", "table or wide for people, json or yaml for programs, name for names only")
	s.timeout = timeout
	flags.Var(span(&s.timeout), "timeout", "give up after this time; 0 never does")
	flags.Var(span(&s.wait), "wait", "wait so long for a driver that is starting, such as 10s")
}

// session is one run of one command. What only calls the driver is a function of the client.
type session struct {
	*csiclient.Client
	*printer

	args []string
	// side receives progress, separate from the answer.
	side io.Writer
}

// endpointOf returns the endpoint of the flag, else of the environment. A plain path is a socket, as for
// the driver.
func (s *settings) endpointOf(cmd *cobra.Command) (string, error) {
	endpoint := s.endpoint
	if !cmd.Flags().Changed("endpoint") {
		endpoint = cmp.Or(os.Getenv(endpointVar), os.Getenv(SpecEndpointVariable), endpoint)
	}

	scheme, path, hasScheme := strings.Cut(endpoint, ":")

	switch {
	case strings.Contains(scheme, "/"):
		return "unix:" + endpoint, nil
	case scheme == "unix" && strings.Trim(path, "/") == "", !hasScheme, strings.HasPrefix(scheme, "tcp"), strings.HasPrefix(scheme, "http"):
		return "", usage(fmt.Errorf("--endpoint %q %w", endpoint, errBadEndpoint))
	default:
		return endpoint, nil
	}
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

		endpoint, err := s.endpointOf(cmd)
		if err != nil {
			return err
		}

		co, err := csiclient.Connect(endpoint)
		if err != nil {
			return usage(err)
		}

		session := &session{co, &printer{s, cmd.OutOrStdout(), knownNames{}}, args, cmd.ErrOrStderr()}

		if s.wait > 0 {
			starting, cancel := context.WithTimeout(ctx, s.wait)
			defer cancel()

			err = co.WaitReady(starting)
		}

		if err == nil {
			err = run(ctx, session)
		}

		// The object that is in the way is none of the arguments. Without its name the error has its id.
		if status.Code(err) == codes.AlreadyExists {
			_ = session.learn(ctx, names.Volume, names.Snapshot, names.Group)
		}

		return s.explain(ctx, endpoint, session.names, errors.Join(err, co.Close()))
	}
}

package ctl_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/ctl"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/lab/calls"
	"github.com/touchstone-csi/touchstone/internal/lab/faults"
	"github.com/touchstone-csi/touchstone/internal/lab/strict"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// eachCommand are command lines of all commands that call a driver, with the calls whose failure is
// not the command's: their answers are shown in addition.
func eachCommand(t *testing.T) []commandLine {
	t.Helper()

	staging, target := filepath.Join(t.TempDir(), "staging"), filepath.Join(t.TempDir(), "target")

	return []commandLine{
		{line: "volume create one"},
		{line: "volume create two --from-volume data"},
		{line: "volume create three --from-snapshot monday"},
		{line: "volume get data", optional: []string{"Report"}},
		{line: "volume list", optional: []string{"Report"}},
		{line: "volume delete data"},
		{line: "volume expand data --size 3Gi"},
		{line: "volume expand raw --size 3Gi"},
		{line: "volume modify data --mutable readIOPS=500"},
		{line: "volume publish data --staging " + staging + " --target " + target},
		{line: "volume unpublish data --staging " + staging + " --target " + target},
		{line: "volume unpublish data"},
		{line: "volume mount raw " + target},
		{line: "volume mount new " + target + " --create --size 1Gi"},
		{line: "volume umount data"},
		{line: "volume stats data"},
		{line: "volume health data"},
		{line: "snapshot create data tuesday"},
		{line: "snapshot create data copied --wait"},
		{line: "snapshot list --volume data"},
		{line: "snapshot list"},
		{line: "snapshot get monday"},
		{line: "snapshot delete monday"},
		{line: "snapshot restore monday four"},
		{line: "snapshot blocks monday"},
		{line: "snapshot blocks monday --since monday"},
		{line: "group create data raw both"},
		{line: "group create data raw both --wait"},
		{line: "group get both"},
		{line: "group delete both"},
		{line: "node info"},
		{line: "node health"},
		{line: "capacity"},
		{line: "capabilities"},
		{line: "operation list"},
		{line: "operation wait data"},
		{line: "operation wait monday"},
		{line: "operation cancel five"},
		{line: "violations"},
		{line: "leaks", finds: "left objects behind"},
		{line: "violations --clear", silent: true},
		{line: "direct-volumes list"},
		{line: "calls"},
		{line: "calls counts"},
		{line: "calls wait --method CreateVolume"},
		{line: "calls clear", silent: true},
		{line: "calls --follow", endless: true},
		{line: "fault add {match: {method: Probe}, act: {unimplemented: true}}"},
		{line: "fault list"},
		{line: "fault log"},
		{line: "fault clear"},
		{line: "fault release held"},
		{line: "check --all"},
		{line: "check data"},
	}
}

type commandLine struct {
	line     string
	optional []string
	// silent is true for a command that prints nothing, endless for one that ends only with its output.
	silent, endless bool
	// finds is part of the error with which the command ends because of what it prints.
	finds string
}

// args are the words of the line; the last argument of fault add is one.
func (c commandLine) args() []string {
	words, rule, hasRule := strings.Cut(c.line, " {")

	args := strings.Fields(words)
	if hasRule {
		args = append(args, "{"+rule)
	}

	return args
}

// run runs the command against the fake, and returns all that it said.
func (c commandLine) run(t *testing.T, endpoint string, out *limited, further ...string) error {
	t.Helper()

	args := slices.Concat(c.args(), []string{"--endpoint", endpoint, "--timeout", "30s"}, further)

	var command *cobra.Command
	if command = ctl.NewCommand(); args[0] == "check" {
		command, args = ctl.NewCheckCommand(), args[1:]
	}

	command.SetOut(out)
	command.SetErr(out)
	command.SetArgs(args)

	return command.ExecuteContext(t.Context())
}

// limited keeps what is written, or refuses it.
type limited struct {
	bytes.Buffer

	err error
}

func (l *limited) Write(text []byte) (int, error) {
	if l.err != nil {
		return 0, l.err
	}

	return l.Buffer.Write(text)
}

// complete is a fake that knows both volumes, and the health of its storage.
type complete struct{ *fake }

func (complete) ControllerGetVolume(
	context.Context, *csi.ControllerGetVolumeRequest,
) (*csi.ControllerGetVolumeResponse, error) {
	return &csi.ControllerGetVolumeResponse{Volume: entry(1).GetVolume(), Status: &csi.ControllerGetVolumeResponse_VolumeStatus{}}, nil
}

func (complete) NodeGetStorageHealth(
	context.Context, *csi.NodeGetStorageHealthRequest,
) (*csi.NodeGetStorageHealthResponse, error) {
	return &csi.NodeGetStorageHealthResponse{}, nil
}

// ControllerGetCapabilities has what the fake has, and lists of what it makes.
func (c complete) ControllerGetCapabilities(
	ctx context.Context, request *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer, err := c.fake.ControllerGetCapabilities(ctx, request)

	for _, rpc := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
	} {
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: rpc}},
		})
	}

	return answer, err
}

// startComplete serves a driver with all services that there are.
func startComplete(t *testing.T, failing int) (*fake, string) {
	t.Helper()

	staging := t.TempDir()
	report := &reporting{
		report: health.Report{Volumes: []health.VolumeReport{
			{ID: "volume-1", Name: "data", FSType: "xfs", Backing: "image", Staged: staging, Published: []string{"/mnt/data"}},
			{ID: "volume-2", Name: "raw", Backing: "image"},
		}},
		found: map[string]health.CheckReport{"volume-1": {Verdict: "clean"}, "volume-2": {Verdict: "clean"}},
	}
	named := &names.Service{List: func(kind names.Kind) []names.Object {
		return map[names.Kind][]names.Object{
			names.Volume:   {{ID: "volume-1", Name: "data"}, {ID: "volume-2", Name: "raw"}},
			names.Snapshot: {{ID: "snapshot-1", Name: "monday"}},
			names.Group:    {{ID: "group-1", Name: "both"}},
		}[kind]
	}}
	log := slog.New(slog.DiscardHandler)

	recorder, err := calls.New(calls.Config{Log: log})
	require.NoError(t, err)
	recordCall(t, recorder, 1, csi.Controller_CreateVolume_FullMethodName, &csi.CreateVolumeRequest{}, &csi.CreateVolumeResponse{}, nil)

	monitor, err := strict.New(strict.Config{Mode: strict.Observe, Log: log}, prometheus.NewRegistry())
	require.NoError(t, err)

	driver := newFake()
	driver.failing = failing

	task := driver.tasks.Start("snapshot", "snapshot-5", "five", gibi)
	task.OnCancel(func(cause error) { go task.End(cause) })

	return driver, serveFake(t, driver, complete{driver}, report.register, (&kata.Service{List: (&assigning{}).list}).Register,
		func(to grpc.ServiceRegistrar) { named.Register(to) }, func(to grpc.ServiceRegistrar) { recorder.Register(to) },
		func(to grpc.ServiceRegistrar) { monitor.Register(to) }, registerFaults(t, log))
}

// registerFaults returns what registers a service of fault rules, in which the rule held has a hold.
func registerFaults(t *testing.T, log *slog.Logger) func(grpc.ServiceRegistrar) {
	t.Helper()

	injector := faults.New(faults.Config{Log: log})
	t.Cleanup(injector.Close)

	_, err := injector.Add([]byte("{name: held, match: {method: NodeStageVolume}, act: {hold: held}}"))
	require.NoError(t, err)

	return injector.Register
}

// TestEachCallOfACommandFailsOnce runs each command as often as it makes calls, and another one fails
// each time: the command fails, and says why.
func TestEachCallOfACommandFailsOnce(t *testing.T) {
	t.Parallel()

	for _, command := range eachCommand(t) {
		t.Run(command.line, func(t *testing.T) {
			driver, endpoint := startComplete(t, 0)

			switch {
			case command.endless:
				require.ErrorIs(t, command.run(t, endpoint, &limited{err: errFull}), errFull)
			case command.finds != "":
				errtext.Require(t, command.run(t, endpoint, &limited{}), command.finds)
			default:
				require.NoError(t, command.run(t, endpoint, &limited{}))
			}

			require.NotEmpty(t, driver.called, "want: the command calls the driver")

			for i, call := range driver.called {
				var out limited

				_, endpoint := startComplete(t, 1+i)
				err := command.run(t, endpoint, &out)

				if slices.Contains(command.optional, call) {
					require.NoError(t, err, "want: the command does without the answer of call %d, %s", i, call)

					continue
				}

				require.Error(t, err, "want: the command fails with call %d, %s; it printed %s", i, call, out.String())
				require.NotZero(t, ctl.ExitCode(err), "want: the exit code of a failure")
				require.Contains(t, out.String()+err.Error(), refused, "call %d, %s", i, call)
			}
		})
	}
}

var errFull = errors.New("no space left on device")

// TestUnprintedOutputFailsTheCommand: what was not printed is a failure, in each format.
func TestUnprintedOutputFailsTheCommand(t *testing.T) {
	t.Parallel()

	for _, command := range eachCommand(t) {
		if command.silent || command.args()[0] == "check" {
			continue // check prints each verdict as it comes, and the program fails at its end.
		}

		for _, format := range []string{"table", "json", "yaml"} {
			_, endpoint := startComplete(t, 0)
			err := command.run(t, endpoint, &limited{err: errFull}, "-o", format)
			require.ErrorIs(t, err, errFull, "want: %s -o %s fails", command.line, format)
		}
	}
}

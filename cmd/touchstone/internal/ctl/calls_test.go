package ctl_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/ctl"
	"github.com/touchstone-csi/touchstone/internal/lab/calls"
	"github.com/touchstone-csi/touchstone/internal/lab/strict"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// startRecorded serves a driver that has recorded two calls.
func startRecorded(t *testing.T) (*calls.Recorder, string) {
	t.Helper()

	recorder, err := calls.New(calls.Config{Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)

	recordCall(t, recorder, 1, csi.Controller_CreateVolume_FullMethodName, &csi.CreateVolumeRequest{Name: "data"},
		&csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "volume-1"}}, nil)
	recordCall(t, recorder, 2, csi.Node_NodeStageVolume_FullMethodName, &csi.NodeStageVolumeRequest{VolumeId: "volume-1"},
		nil, status.Error(codes.NotFound, "no volume"))

	_, endpoint := startFake(t, func(to grpc.ServiceRegistrar) { recorder.Register(to) })

	return recorder, endpoint
}

func recordCall(t *testing.T, recorder *calls.Recorder, number uint64, method string, request, response any, err error) {
	t.Helper()

	recording := recorder.Begin(t.Context(), number, method)
	recording.Request(request)
	recording.End(response, err)
}

func TestCallsFiltersTheLog(t *testing.T) {
	_, endpoint := startRecorded(t)

	for want, args := range map[string][]string{
		"1\n2\n": {"calls"},
		"2\n":    {"calls", "--method", "Node*"},
		"1\n":    {"calls", "--code", "ok", "--since", "1h"},
		"":       {"calls", "--since", "2100-01-01T00:00:00Z"},
	} {
		out, err := run(t, append(args, "-o", "name", "--endpoint", endpoint)...)
		require.NoError(t, err)
		require.Equal(t, want, out, args)
	}

	out, err := run(t, "calls", "--volume", "data", "-o", "wide", "--endpoint", endpoint)
	require.NoError(t, err)
	require.Regexp(t, `CALL +STARTED +METHOD +OBJECT +CODE +TOOK +MESSAGE`, out)
	require.Regexp(t, `2 +[0-9:.]+ +NodeStageVolume +volume-1 +NOT_FOUND +\S+ +no volume`, out)

	out, err = run(t, "calls", "-o", "json", "--since-call", "1", "--endpoint", endpoint)
	require.NoError(t, err)

	var listed []calls.Call

	require.NoError(t, json.Unmarshal([]byte(out), &listed))
	require.Len(t, listed, 1, "want: one call is listed")
	require.JSONEq(t, `{"volume_id":"volume-1"}`, string(listed[0].Request))

	out, err = run(t, "calls", "counts", "--endpoint", endpoint)
	require.NoError(t, err)
	require.Equal(t, "METHOD           CODE       COUNT\nCreateVolume     OK         1\nNodeStageVolume  NOT_FOUND  1\n", out)

	for _, wrong := range [][]string{{"calls", "--since", "yesterday"}, {"calls", "wait", "--since", "-5m"}, {"calls", "too", "many"}} {
		_, err = run(t, append(wrong, "--endpoint", endpoint)...)
		require.Equal(t, 2, ctl.ExitCode(err), "%v: %v", wrong, err)
	}

	_, err = run(t, "calls", "clear", "--endpoint", endpoint)
	require.NoError(t, err)

	out, err = run(t, "calls", "-o", "name", "--endpoint", endpoint)
	require.NoError(t, err)
	require.Empty(t, out, "want: no call is listed")
}

// TestCallsFilterWithJQ: a filter gets calls with numbers and defaults, as fault rules do.
func TestCallsFilterWithJQ(t *testing.T) {
	_, endpoint := startRecorded(t)

	for filter, want := range map[string]string{
		`.call`:         "1\n2\n",
		`.request.name`: "\"data\"\n",
		`select(.request.staging_target_path == "") | .code`:            "\"NOT_FOUND\"\n",
		`select(.response.volume.capacity_bytes == 0) | .objects[]`:     "\"data\"\n\"volume-1\"\n",
		`.request.parameters.pool | . == "fast" or startswith("fast")?`: "",
		`.code == "OK"`: "true\n",
	} {
		out, err := run(t, "calls", "--jq", filter, "--endpoint", endpoint)
		require.NoError(t, err, filter)
		require.Equal(t, want, out, filter)
	}

	out, err := run(t, "calls", "wait", "--count", "1", "--jq", `select(.code != "OK") | .call`, "--timeout", "1m", "--endpoint", endpoint)
	require.NoError(t, err)
	require.Equal(t, "2\n", out)

	for filter, code := range map[string]int{"[": 2, "many": 2, ".call | keys": 1} {
		_, err := run(t, "calls", "--jq", filter, "--endpoint", endpoint)
		require.Equal(t, code, ctl.ExitCode(err), "%s: %v", filter, err)
	}
}

func TestCallsWaitReturnsTheCall(t *testing.T) {
	t.Parallel()

	recorder, endpoint := startRecorded(t)

	out, err := run(t, "calls", "wait", "--method", "CreateVolume", "-o", "name", "--endpoint", endpoint)
	require.NoError(t, err)
	require.Equal(t, "1\n", out)

	out, err = run(t, "calls", "wait", "--count", "3", "--timeout", "1s", "-o", "name", "--endpoint", endpoint)
	errtext.Require(t, err, "2 of 3 within 1s")
	require.Equal(t, 1, ctl.ExitCode(err), "want: too few calls exit with 1")
	require.Equal(t, "1\n2\n", out, "what was seen")

	_, err = run(t, "calls", "wait", "--new", "--timeout", "50ms", "--endpoint", endpoint)
	errtext.Require(t, err, "0 of 1")

	ended := make(chan error, 1)

	go func() {
		_, err := run(t, "calls", "wait", "--since-call", "2", "--timeout", "1m", "--endpoint", endpoint)
		ended <- err
	}()

	recordCall(t, recorder, 3, csi.Identity_Probe_FullMethodName, &csi.ProbeRequest{}, &csi.ProbeResponse{}, nil)
	require.NoError(t, await.Receive(t, ended, "the wait"))
}

func TestCallsFollowPrintsNewCalls(t *testing.T) {
	recorder, endpoint := startRecorded(t)
	ctx, interrupt := context.WithCancel(t.Context())
	shown, output := io.Pipe()

	command := ctl.NewCommand()
	command.SetOut(output)
	// --timeout does not count.
	command.SetArgs([]string{"calls", "--follow", "-o", "json", "--timeout", "1ns", "--endpoint", endpoint})

	ended := make(chan error, 1)
	go func() { ended <- command.ExecuteContext(ctx) }()

	lines := json.NewDecoder(shown)

	for number := range uint64(3) {
		if number == 2 {
			recordCall(t, recorder, 3, csi.Identity_Probe_FullMethodName, &csi.ProbeRequest{}, &csi.ProbeResponse{}, nil)
		}

		var call calls.Call

		require.NoError(t, lines.Decode(&call))
		require.Equal(t, number+1, call.Number, "want: the calls follow in the order of their numbers")
	}

	interrupt()
	require.NoError(t, await.Receive(t, ended, "the end of --follow"))
}

// TestCallsFollowLeavesOutFailures: a call for which the program fails is left out.
func TestCallsFollowLeavesOutFailures(t *testing.T) {
	recorder, endpoint := startRecorded(t)
	ctx, interrupt := context.WithCancel(t.Context())
	shown, output := io.Pipe()

	command := ctl.NewCommand()
	command.SetOut(output)
	command.SetArgs([]string{"calls", "--follow", "--jq", "if .call < 3 then error else .call end", "--endpoint", endpoint})

	ended := make(chan error, 1)
	go func() {
		err := command.ExecuteContext(ctx)
		ended <- errors.Join(err, output.CloseWithError(err))
	}()

	recordCall(t, recorder, 3, csi.Identity_Probe_FullMethodName, &csi.ProbeRequest{}, &csi.ProbeResponse{}, nil)

	var number int

	require.NoError(t, json.NewDecoder(shown).Decode(&number), "want: the calls before, for which the program fails, are left out")
	require.Equal(t, 3, number, "the first call that is printed")

	interrupt()
	require.NoError(t, await.Receive(t, ended, "the end of --follow"))
}

func TestViolationsPrintsTheRecords(t *testing.T) {
	monitor, err := strict.New(strict.Config{Mode: strict.Observe, Log: slog.New(slog.DiscardHandler)}, prometheus.NewRegistry())
	require.NoError(t, err)

	_, endpoint := startFake(t, func(to grpc.ServiceRegistrar) { monitor.Register(to) })
	end, err := monitor.Begin(t.Context(), 6, csi.Controller_CreateVolume_FullMethodName, &csi.CreateVolumeRequest{Name: "data"})
	require.NoError(t, err)
	end(&csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "volume-1"}}, nil)

	end, err = monitor.Begin(t.Context(), 7, csi.Controller_DeleteVolume_FullMethodName,
		&csi.DeleteVolumeRequest{VolumeId: "volume-1", Secrets: map[string]string{"a key": ""}})
	require.NoError(t, err)
	end(&csi.DeleteVolumeResponse{}, nil)

	out, err := run(t, "violations", "--endpoint", endpoint)
	errtext.Require(t, err, "violates the CSI spec: 1")
	require.Equal(t, 1, ctl.ExitCode(err), "want: a violation fails the command")
	require.Regexp(t, `secret-key-malformed +volume-1 +data +1 +\S+ +DeleteVolume +SR-1 `, out)

	out, err = run(t, "violations", "-o", "json", "--endpoint", endpoint)
	require.Error(t, err, "want: a violation fails the command")

	var listed []strict.Violation

	require.NoError(t, json.Unmarshal([]byte(out), &listed))
	require.Equal(t, uint64(7), listed[0].Call, "want: the violation names the call")

	for filter, want := range map[string]string{`select(.count > 0) | .id`: "\"secret-key-malformed\"\n", ".refused": ""} {
		out, err = run(t, "violations", "--jq", filter, "--endpoint", endpoint)
		require.Equal(t, want != "", err != nil, "want: what %s prints fails the command", filter)
		require.Equal(t, want, out)
	}

	_, err = run(t, "violations", "--jq", ".id[]", "--endpoint", endpoint)
	errtext.Require(t, err, "jq", "want: a filter that fails for each is a mistake")

	_, err = run(t, "violations", "--clear", "--endpoint", endpoint)
	require.NoError(t, err)

	_, err = run(t, "violations", "--endpoint", endpoint)
	require.NoError(t, err, "want: the exit code 0 without violations")
	require.Empty(t, monitor.List(), "want: --clear removes all violations")
}

func TestDisabledServiceNamesItsFlag(t *testing.T) {
	_, endpoint := startFake(t)

	for _, args := range [][]string{{"calls"}, {"calls", "--follow"}, {"calls", "wait"}, {"calls", "counts"}, {"calls", "clear"}} {
		_, err := run(t, append(args, "--endpoint", endpoint)...)
		errtext.Require(t, err, "--call-log=ring", args)
		require.Equal(t, 1, ctl.ExitCode(err), "want: a driver without a call log exits with 1")
	}

	_, err := run(t, "violations", "--endpoint", endpoint)
	errtext.Require(t, err, "--strict")

	for _, args := range [][]string{{"list"}, {"log"}, {"clear"}, {"release", "x"}, {"add", "{act: {unimplemented: true}}"}} {
		_, err := run(t, append(append([]string{"fault"}, args...), "--endpoint", endpoint)...)
		errtext.Require(t, err, "--enable-faults", "%v; want: the flag that is missing", args)
	}
}

// TestUnfitFiltersAreRefused before the driver is asked.
func TestUnfitFiltersAreRefused(t *testing.T) {
	_, endpoint := startFake(t)

	_, err := run(t, "violations", "--clear", "--jq", ".id", "--endpoint", endpoint)
	errtext.Require(t, err, "--clear")
	require.Equal(t, 2, ctl.ExitCode(err), "want: the exit code of a usage error")

	_, err = run(t, "violations", "--jq", ".id |", "--endpoint", endpoint)
	errtext.Require(t, err, "--jq")
	require.Equal(t, 2, ctl.ExitCode(err), "want: the exit code of a usage error")
}

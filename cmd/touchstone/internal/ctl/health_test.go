package ctl_test

import (
	"bytes"
	"encoding/json"
	"io"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/yaml"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/ctl"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

func TestHealthPrintsTables(t *testing.T) {
	_, touchstone := startReporting(t)
	lists := startForeign(t, []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES, csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH,
	}, nil)
	gets := startForeign(t, []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES, csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH,
	}, []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH, csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH,
	})
	listsHealth := startForeign(t, []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH, csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH,
	}, nil)
	silent := startForeign(t, nil, nil)
	_, old := startFake(t)

	for name, test := range map[string]struct {
		endpoint string
		args     []string
		code     int
		says     string
		want     string
	}{
		"all": {touchstone, []string{"volume", "health"}, 1, "not healthy: 1 of 3 volumes", `
VOLUME    VIEW  STATUS        REASON       SINCE  MESSAGE
volume-1  -     HEALTHY       -            -      -
volume-2  node  INACCESSIBLE  DiskFailure  125m   its root can't be read
volume-2  node  DEGRADED      IOErrors     125m   requests failed
volume-3  -     HEALTHY       -            -      -
`},
		"the abnormal": {touchstone, []string{"volume", "health", "--abnormal"}, 1, "1 of 3 volumes", `
VOLUME    VIEW  STATUS        REASON       SINCE  MESSAGE
volume-2  node  INACCESSIBLE  DiskFailure  125m   its root can't be read
volume-2  node  DEGRADED      IOErrors     125m   requests failed
`},
		"a healthy one": {touchstone, []string{"volume", "health", "volume-1"}, 0, "", `
VOLUME    VIEW  STATUS   REASON  SINCE  MESSAGE
volume-1  -     HEALTHY  -       -      -
`},
		"one that is not there": {touchstone, []string{"volume", "health", "volume-1", "none"}, 2, "volume none: the driver knows no such volume", `
VOLUME    VIEW  STATUS   REASON  SINCE  MESSAGE
volume-1  -     HEALTHY  -       -      -
`},
		"a foreign driver's list": {lists, []string{"volume", "health"}, 1, "1 of 2 volumes", `
VOLUME    VIEW        STATUS    REASON         SINCE  MESSAGE
volume-1  -           HEALTHY   -              -      -
volume-2  controller  DEGRADED  SlowPath       -      one path is left
volume-2  controller  UNKNOWN   FromTheFuture  -      -
`},
		"a foreign driver that lists no volumes": {listsHealth, []string{"volume", "health"}, 1, "1 of 1 volumes", `
VOLUME    VIEW        STATUS    REASON         SINCE  MESSAGE
volume-2  controller  DEGRADED  SlowPath       -      one path is left
volume-2  controller  UNKNOWN   FromTheFuture  -      -
`},
		"both views of a foreign driver": {gets, []string{"volume", "health"}, 1, "2 of 2 volumes", `
VOLUME    VIEW        STATUS        REASON         SINCE  MESSAGE
volume-1  node        INACCESSIBLE  NoDevice       -      -
volume-2  controller  DEGRADED      SlowPath       -      one path is left
volume-2  controller  UNKNOWN       FromTheFuture  -      -
`},
		"one of a foreign driver": {lists, []string{"volume", "health", "volume-1"}, 0, "", `
VOLUME    VIEW  STATUS   REASON  SINCE  MESSAGE
volume-1  -     HEALTHY  -       -      -
`},
		"none of a foreign driver": {lists, []string{"volume", "health", "none"}, 2, "volume none: the driver knows no such volume", `
VOLUME  VIEW  STATUS  REASON  SINCE  MESSAGE
`},
		"a driver without health": {silent, []string{"volume", "health"}, 2, "GET_VOLUME_HEALTH", "\n"},
		"storage": {gets, []string{"node", "health"}, 1, "not healthy: the storage", `
STATUS            REASON          MESSAGE
STORAGE_DEGRADED  PoolNearlyFull  little is left
`},
		"healthy storage": {silent, []string{"node", "health"}, 0, "", `
STATUS   REASON  MESSAGE
HEALTHY  -       -
`},
		"storage without the RPC":    {old, []string{"node", "health"}, 2, "GET_STORAGE_HEALTH", "\n"},
		"a driver that is not there": {"unix:///nowhere/csi.sock", []string{"volume", "health"}, 2, "UNAVAILABLE", "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := run(t, append(test.args, "--endpoint", test.endpoint)...)
			require.Equal(t, test.code, ctl.ExitCode(err), err)

			if test.says != "" {
				errtext.Require(t, err, test.says)
			}

			require.Equal(t, test.want, "\n"+out)
		})
	}
}

func TestHealthIsTheReportAsJSON(t *testing.T) {
	driver, endpoint := startReporting(t)

	out, err := run(t, "volume", "health", "-o", "json", "--endpoint", endpoint)
	require.Equal(t, 1, ctl.ExitCode(err), "want: an unhealthy volume exits with 1")

	want, err := json.Marshal(driver.report)
	require.NoError(t, err)
	require.JSONEq(t, string(want), out)

	out, err = run(t, "volume", "health", "volume-1", "-o", "json", "--endpoint", endpoint)
	require.NoError(t, err)

	var report health.Report
	require.NoError(t, json.Unmarshal([]byte(out), &report))
	require.Len(t, report.Volumes, 1, "want: the report has the volume")
	require.Equal(t, "volume-1", report.Volumes[0].ID)
	require.Len(t, report.Storage, 1, "want: the report has the pool")
}

func TestGetPrintsTheHealth(t *testing.T) {
	driver, endpoint := startReporting(t)

	out, err := run(t, "volume", "get", "volume-1", "--endpoint", endpoint)
	require.NoError(t, err, "the command does not check health")
	require.Regexp(t, `(?m)^Condition: +HEALTHY
Last check: +20.*Z? \(125m ago\), clean \(online\)
Last clean check: +20.* \(125m ago\)$`, out)

	driver.report.Volumes[0].Conditions = driver.report.Volumes[1].Conditions
	driver.report.Volumes[0].Check = driver.report.Volumes[1].Check

	out, err = run(t, "volume", "get", "volume-1", "--endpoint", endpoint)
	require.NoError(t, err)
	require.Regexp(t, `(?m)^Condition: +INACCESSIBLE DiskFailure for 125m \(node\): its root can't be read
Condition: +DEGRADED IOErrors .*
Last check: +20.*, damaged \(stage\)
Last clean check: +never$`, out)

	out, err = run(t, "volume", "get", "volume-1", "-o", "json", "--endpoint", endpoint)
	require.NoError(t, err)

	var document struct {
		Volume struct {
			ID string `json:"volume_id"` //nolint:tagliatelle // the spec's
		} `json:"volume"`
		Health health.VolumeReport `json:"health"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &document))
	require.Equal(t, "volume-1", document.Volume.ID)
	require.Equal(t, "damaged", document.Health.Check.Verdict)
	require.Len(t, document.Health.Conditions, 2, "want: both conditions of the volume are shown")
}

// check is `touchstone check args…`.
func check(t *testing.T, args ...string) (string, error) {
	t.Helper()

	var out bytes.Buffer

	command := ctl.NewCheckCommand()
	command.SetOut(&out)
	command.SetErr(io.Discard)
	command.SetArgs(args)

	err := command.ExecuteContext(t.Context())

	return out.String(), err
}

func TestCheckPrintsVerdicts(t *testing.T) {
	driver, endpoint := startReporting(t)

	for name, test := range map[string]struct {
		args  []string
		code  int
		says  string
		asked []string
		want  string
	}{
		"one that is clean": {[]string{"volume-1"}, 0, "", []string{"volume-1 offline"}, `
volume-1  clean     offline, 84ms
`},
		"one that is damaged": {[]string{"volume-2", "--online"}, 1, "not clean: 1 of 1 volumes", []string{"volume-2 online"}, `
volume-2  damaged   online, 1s: bad block bitmap
`},
		"one that can't be": {[]string{"volume-3"}, 2, "not checked: 1 of 1 volumes", []string{"volume-3 offline"}, `
volume-3  -         it is raw block
`},
		"all": {[]string{"--all"}, 1, "not clean: 1 of 2 volumes", []string{"volume-1 offline", "volume-2 offline", "volume-3 offline"}, `
volume-1  clean     offline, 84ms
volume-2  damaged   offline, 1s: bad block bitmap
volume-3  -         it is raw block
`},
		"neither":         {nil, 2, "give volumes, or --all", nil, "\n"},
		"both":            {[]string{"--all", "volume-1"}, 2, "give volumes, or --all", nil, "\n"},
		"a flag too many": {[]string{"--al"}, 2, "unknown flag", nil, "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			driver.asked = nil

			out, err := check(t, append(test.args, "--endpoint", endpoint)...)
			require.Equal(t, test.code, ctl.ExitCode(err), err)

			if test.says != "" {
				errtext.Require(t, err, test.says)
			}

			require.Equal(t, test.asked, driver.asked)
			require.Equal(t, test.want, "\n"+out)
		})
	}
}

func TestCheckAllContinuesAfterARefusal(t *testing.T) {
	driver, endpoint := startReporting(t)
	driver.refused["volume-2"] = status.Error(codes.NotFound, "volume volume-2: no such volume")

	out, err := check(t, "--all", "--endpoint", endpoint)
	require.NoError(t, err)
	require.Contains(t, out, "no such volume")

	driver.refused["volume-2"] = status.Error(codes.Unavailable, "its pool does not answer")

	out, err = check(t, "--all", "--endpoint", endpoint)
	require.NoError(t, err)
	require.Contains(t, out, "does not answer")

	driver.refused["volume-2"] = status.Error(codes.Internal, "e2fsck can't be started")

	out, err = check(t, "--all", "-o", "json", "--endpoint", endpoint)
	require.Equal(t, 1, ctl.ExitCode(err), "want: a check that fails exits with 1")

	var document struct {
		Checks     []health.VolumeCheck `json:"checks"`
		PassedOver []struct {
			VolumeID string `json:"volumeId"`
			Why      string `json:"why"`
		} `json:"passedOver"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &document), out)
	require.Len(t, document.Checks, 2, "want: both volumes that can be checked have a result")
	require.Equal(t, "clean", document.Checks[0].Verdict)
	require.Equal(t, "failed", document.Checks[1].Verdict)
	require.Equal(t, "e2fsck can't be started", document.Checks[1].Detail)
	require.Len(t, document.PassedOver, 1, "want: the volume that cannot be checked is passed over")
	require.Equal(t, "volume-3", document.PassedOver[0].VolumeID)

	out, err = check(t, "--all", "-o", "yaml", "--endpoint", endpoint)
	require.Equal(t, 1, ctl.ExitCode(err), "want: a check that fails exits with 1")
	require.Contains(t, out, "verdict: failed\n")
	require.NoError(t, yaml.UnmarshalStrict([]byte(out), &map[string]any{}))
}

func TestCheckRefusesOtherDrivers(t *testing.T) {
	_, endpoint := startFake(t)

	for _, args := range [][]string{{"--all"}, {"volume-1"}} {
		_, err := check(t, append(args, "--endpoint", endpoint)...)
		errtext.Require(t, err, "it is not Touchstone")
		require.Equal(t, 2, ctl.ExitCode(err), "want: a driver that is not Touchstone exits with 2")
	}

	_, err := check(t, "volume-1", "--endpoint", "unix:///nowhere/csi.sock")
	errtext.Require(t, err, "UNAVAILABLE")
	require.Equal(t, 2, ctl.ExitCode(err), "want: a driver that does not answer exits with 2")
}

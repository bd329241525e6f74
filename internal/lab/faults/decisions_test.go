package faults_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/lab/faults"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

var errDriver = status.Error(codes.NotFound, "the driver's own failure")

// TestEachFailureHasItsErrorAndEffect compares the error of a call with each kind of failure, and whether the driver has handled it.
func TestEachFailureHasItsErrorAndEffect(t *testing.T) {
	t.Parallel()

	for act, test := range map[string]struct {
		own     error
		secret  string
		want    codes.Code
		message string
		handled bool
	}{
		"before: {code: ABORTED}":              {want: codes.Aborted, message: "fault rule r, hit 1"},
		"before: {code: ABORTED, message: no}": {want: codes.Aborted, message: "no"},
		"after: {code: ABORTED}":               {want: codes.Aborted, message: "fault rule r, hit 1", handled: true},
		"after: {code: INTERNAL}":              {own: errDriver, want: codes.NotFound, message: "the driver's own failure", handled: true},
		"unimplemented: true":                  {want: codes.Unimplemented, message: "fault rule r: not implemented"},
		"require_secrets: [key]":               {want: codes.Unauthenticated, message: `fault rule r: the secret "key" is missing`},
		"require_secrets: [key, other]":        {secret: "x", want: codes.Unauthenticated, message: `fault rule r: the secret "other" is missing`},
		"require_secrets: ['key']":             {secret: "x", handled: true},
		"delay: {before: 1ns, after: 1ns}":     {handled: true},
		"lose: reset":                          {own: errDriver, want: codes.Unavailable, message: "fault rule r: the connection was reset", handled: true},
		"socket: {vanish: 1ns}":                {want: codes.Unavailable, message: "fault rule r: the socket cannot be hidden"},
	} {
		i := faults.New(faults.Config{})
		add(t, i, "{name: r, act: {"+act+"}}")

		handled := false
		_, err := i.Unary(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "v", Secrets: map[string]string{"key": test.secret}},
			&grpc.UnaryServerInfo{FullMethod: csi.Controller_DeleteVolume_FullMethodName}, func(context.Context, any) (any, error) {
				handled = true

				return &csi.DeleteVolumeResponse{}, test.own
			})
		rpccode.Require(t, err, test.want, "%s", act)
		require.Equal(t, test.message, status.Convert(err).Message(), "want: the message with %s", act)
		require.Equal(t, test.handled, handled, "want: the driver handles a call with %s or not", act)
	}
}

func TestAFailureHasItsDetails(t *testing.T) {
	t.Parallel()

	i := faults.New(faults.Config{})
	add(t, i, `{act: {before: {code: ABORTED, details: [{"@type": type.googleapis.com/google.rpc.ErrorInfo, reason: R}]}}}`)

	details := status.Convert(deleteVolume(t.Context(), i, "v")).Details()
	require.Len(t, details, 1, "want: the detail of the rule")

	info, ok := details[0].(*errdetails.ErrorInfo)
	require.True(t, ok, "want: a detail of its type")
	require.Equal(t, "R", info.GetReason(), "want: the fields of the detail")
}

// TestCallsOfOtherServicesPass, and requests that are no messages.
func TestCallsOfOtherServicesPass(t *testing.T) {
	t.Parallel()

	i := faults.New(faults.Config{})
	add(t, i, "{act: {before: {code: ABORTED}}}")

	for method, request := range map[string]any{
		"/other.Service/DeleteVolume": &csi.DeleteVolumeRequest{}, "/csi.v1.Controller/Unknown": &csi.DeleteVolumeRequest{},
		csi.Controller_DeleteVolume_FullMethodName: "no message",
	} {
		response, err := i.Unary(t.Context(), request, &grpc.UnaryServerInfo{FullMethod: method},
			func(context.Context, any) (any, error) { return "the response", nil })
		require.NoError(t, err, "want: %s with %v passes", method, request)
		require.Equal(t, "the response", response, "want: the response of %s", method)
	}
}

// TestOperationsAtTheirPoints: rules match points, objects and the node, and fail, or end the process.
func TestOperationsAtTheirPoints(t *testing.T) {
	t.Parallel()

	for rule, test := range map[string]struct {
		want    codes.Code
		crashes int
		object  string
	}{
		"match: {at: volume-staged}, act: {before: {code: ABORTED}}":                {want: codes.Aborted, object: "id"},
		"match: {at: volume-staged, volume: id}, act: {before: {code: ABORTED}}":    {want: codes.Aborted, object: "id"},
		"match: {at: volume-staged, volume: name}, act: {before: {code: ABORTED}}":  {want: codes.Aborted, object: "id"},
		"match: {at: volume-staged, node: n1}, act: {before: {code: ABORTED}}":      {want: codes.Aborted, object: "id"},
		"match: {at: volume-staged, node: n2}, act: {before: {code: ABORTED}}":      {},
		"match: {at: volume-staged, volume: other}, act: {before: {code: ABORTED}}": {},
		"match: {at: volume-removed}, act: {before: {code: ABORTED}}":               {},
		"act: {before: {code: ABORTED}}":                                            {},
		"match: {at: volume-staged}, act: {crash: true}":                            {crashes: 1, object: "id"},
		"match: {at: volume-staged}, act: {delay: {before: 1ns}}":                   {object: "id"},
	} {
		crashes := 0
		i := faults.New(faults.Config{NodeID: "n1", Crash: func() { crashes++ }})
		add(t, i, "{"+rule+"}")
		rpccode.Require(t, i.At(t.Context(), operation.VolumeStaged, "id", "name"), test.want, "%s", rule)
		require.Equal(t, test.crashes, crashes, "want: the process ends or not: %s", rule)

		var objects []string
		for _, hit := range i.Log() {
			objects = append(objects, hit.Object)
		}

		require.Equal(t, test.object, strings.Join(objects, ""), "want: a hit has the object of the operation: %s", rule)
	}

	i := faults.New(faults.Config{})
	add(t, i, "{match: {at: volume-staged}, act: {before: {code: ABORTED}}}")
	rpccode.Require(t, i.At(t.Context(), operation.VolumeStaged), codes.Aborted, "an operation without an object")
	i.Close()
	i.Close()
	require.NoError(t, i.At(t.Context(), operation.VolumeStaged), "want: a closed injector has no effect")
}

// TestAConditionIsInTheViewOfItsRule: one without a view is in both of volumes.
func TestAConditionIsInTheViewOfItsRule(t *testing.T) {
	t.Parallel()

	for view, want := range map[string][3]int{"": {1, 1, 0}, ", view: node": {1, 0, 0}, ", view: controller": {0, 1, 0}} {
		i := faults.New(faults.Config{})
		add(t, i, "{name: bad, act: {condition: {status: DEGRADED, reason: R, message: m"+view+"}}}")

		for at, each := range []string{"node", "controller", "storage"} {
			entries := i.Entries(each, "v")
			require.Len(t, entries, want[at], "want: the conditions of the view %s with %q", each, view)

			for _, entry := range entries {
				require.Equal(t, health.Entry{Status: health.Degraded, Reason: "R", Message: "m"}, entry, "want: the condition of the rule")
			}
		}
	}

	i := faults.New(faults.Config{})
	add(t, i, "{until: {time: 2001-01-01T00:00:00Z}, act: {condition: {status: DEGRADED, reason: R}}}")
	require.Empty(t, i.Entries("node", "v"), "want: a rule that has ended has no condition")
}

// TestActiveRulesAreDescribed compares all that shows them: the list, the hits, the metrics, the manifest and the report.
func TestActiveRulesAreDescribed(t *testing.T) {
	t.Parallel()

	i := faults.New(faults.Config{})
	names, err := i.Add([]byte(`
- {match: {method: [DeleteVolume, CreateVolume]}, act: {before: {code: ABORTED}, delay: {after: 1ns}}}
- {name: rule-2, match: {at: volume-staged}, act: {crash: true}}
- {act: {condition: {status: DEGRADED, reason: R}}}
- {match: {calls: 2-}, act: {lose: hang}}
`))
	require.NoError(t, err)
	require.Equal(t, []string{"rule-1", "rule-2", "rule-3", "rule-4"}, names, "want: rules without a name get a free one")
	rpccode.Require(t, deleteVolume(t.Context(), i, "v"), codes.Aborted)

	listed, problem := i.List()
	require.Empty(t, problem, "want: there is no file")

	described := []string{}
	for _, each := range listed {
		described = append(described, fmt.Sprintf("%s %s %s %s %d %d %d %v", each.Name, each.Source, each.Method, each.Act, each.Calls, each.Hits,
			each.Holding, each.Ended))
	}

	require.Equal(t, []string{
		"rule-1 added DeleteVolume,CreateVolume before,delay 1 1 0 false", "rule-2 added volume-staged crash 0 0 0 false",
		"rule-3 added health condition 0 0 0 false", "rule-4 added * lose 1 0 0 false",
	}, described, "want: each rule with its calls and hits")

	hits := i.Log()
	require.Len(t, hits, 1, "want: the hit is logged")
	require.Equal(t, faults.Hit{At: hits[0].At, Rule: "rule-1", Number: 1, Method: "DeleteVolume", Object: "v", Act: "before,delay"}, hits[0])
	require.Equal(t, map[string]string{"faults": "rule-1,rule-2,rule-3,rule-4"}, i.Manifest(), "want: the names of the rules")
	require.Equal(t, []health.FaultReport{
		{Rule: "rule-1", At: "DeleteVolume,CreateVolume", Act: "before,delay", Hits: 1},
		{Rule: "rule-2", At: "volume-staged", Act: "crash"},
		{Rule: "rule-3", At: "health", Act: "condition"},
		{Rule: "rule-4", At: "*", Act: "lose"},
	}, i.Reports(), "want: a report of each rule")

	registry, counted := prometheus.NewRegistry(), map[string]float64{}
	require.NoError(t, registry.Register(i))

	_, err = i.Clear("rule-1")
	require.NoError(t, err)

	families, err := registry.Gather()
	require.NoError(t, err)

	for _, family := range families {
		for _, metric := range family.GetMetric() {
			rule := ""
			if labels := metric.GetLabel(); len(labels) > 0 {
				rule = labels[0].GetValue()
			}

			counted[rule] = metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
		}
	}

	require.Equal(t, map[string]float64{"": 3, "rule-1": 1, "rule-2": 0, "rule-3": 0, "rule-4": 0}, counted,
		"want: the number of rules, and the hits of each, also of one that was cleared")
}

// TestNamesInTheManifestAreBounded, and end with whole characters.
func TestNamesInTheManifestAreBounded(t *testing.T) {
	t.Parallel()

	const limit = 1024

	for name, whole := range map[string]bool{
		strings.Repeat("a", limit): true, strings.Repeat("a", limit+1): false, strings.Repeat("ä", limit/2): true, strings.Repeat("ä", limit): false,
	} {
		i := faults.New(faults.Config{})
		add(t, i, "{name: "+name+", act: {unimplemented: true}}")

		shown := i.Manifest()["faults"]
		require.Equal(t, whole, shown == name, "want: a name of %d bytes is shown whole or not", len(name))
		require.LessOrEqual(t, len(shown), limit, "want: the manifest is limited")
		require.True(t, utf8.ValidString(shown), "want: the name ends with a whole character")
		require.Equal(t, whole, !strings.HasSuffix(shown, "…"), "want: a shortened name says so")
	}
}

// TestTheNewestHitsAreKept, a thousand of them.
func TestTheNewestHitsAreKept(t *testing.T) {
	t.Parallel()

	i := faults.New(faults.Config{})
	add(t, i, "{act: {unimplemented: true}}")

	for range 1001 {
		rpccode.Require(t, deleteVolume(t.Context(), i, "v"), codes.Unimplemented)
	}

	hits := i.Log()
	require.Equal(t, []int{1000, 2, 1001}, []int{len(hits), hits[0].Number, hits[len(hits)-1].Number}, "want: the newest hits, the oldest first")
}

// TestAFileThatCannotBeLoaded leaves the rules as they are.
func TestAFileThatCannotBeLoaded(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "rules")
	i := faults.New(faults.Config{})
	require.ErrorIs(t, i.Load(path), os.ErrNotExist, "want: a missing file is an error")

	require.NoError(t, os.WriteFile(path, []byte("- {act: {unimplemented: true}}\n- {name: b, act: {start: {delay: 1ns}}}\n"), 0o600))
	require.NoError(t, i.Load(path))
	require.NoError(t, i.Start(t.Context()), "want: a start waits for its rules")

	listed, _ := i.List()
	require.Equal(t, []string{"file-1 file * 0", "file-2 b"}, []string{
		fmt.Sprintf("%s %s %s %d", listed[0].Name, listed[0].Source, listed[0].Method, listed[0].Hits), "file-2 " + listed[1].Name,
	}, "want: rules of a file without a name have its number")
	require.Equal(t, 1, listed[1].Hits, "want: the start is a hit")

	require.NoError(t, os.WriteFile(path, []byte("- {name: c}\n"), 0o600))
	require.ErrorIs(t, i.Load(path), faults.ErrRule, "want: a mistake is an error")

	after, _ := i.List()
	require.Equal(t, listed, after, "want: the rules stay")

	_, err := i.Add([]byte("{act: {start: {delay: 1s}}}"))
	errtext.Require(t, err, "start acts at a start", "want: a rule of a start is only in the file")

	_, err = i.Add([]byte("[]"))
	require.ErrorIs(t, err, faults.ErrRule, "want: no rule at all is refused")

	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errDriver)

	slow := faults.New(faults.Config{})
	require.NoError(t, os.WriteFile(path, []byte("{act: {start: {delay: 1h}}}"), 0o600))
	require.NoError(t, slow.Load(path))
	require.Equal(t, errDriver, slow.Start(ended), "want: a start that is cancelled waits no more")
}

// TestASocketThatIsHidden is shown again after the time of the rule, and a failure to hide it is the call's.
func TestASocketThatIsHidden(t *testing.T) {
	t.Parallel()

	restored := make(chan bool, 1)
	i := faults.New(faults.Config{Vanish: func() (func(), error) { return func() { restored <- true }, nil }})
	add(t, i, "{name: r, act: {socket: {vanish: 1ns}}}")

	err := deleteVolume(t.Context(), i, "v")
	rpccode.Require(t, err, codes.Unavailable)
	require.Equal(t, "fault rule r: the connection was reset", status.Convert(err).Message(), "want: the caller's connection is reset")
	require.True(t, <-restored, "want: the socket is shown again")

	i = faults.New(faults.Config{Vanish: func() (func(), error) { return nil, errors.New("no socket") }})
	add(t, i, "{name: r, act: {socket: {vanish: 1ns}}}")
	errtext.Require(t, deleteVolume(t.Context(), i, "v"), "hide the socket: no socket", "want: why the socket cannot be hidden")
}

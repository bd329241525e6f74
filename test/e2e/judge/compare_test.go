package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/onsi/ginkgo/v2/types"
	"github.com/stretchr/testify/require"
)

func TestResultsAreWeighedAgainstUpstreams(t *testing.T) {
	t.Parallel()

	for _, each := range []struct {
		ours, theirs outcome
		compared     bool
		what         string
		good         bool
	}{
		{hasPassed, notRun, false, "", true},
		{wasSkipped, notRun, false, "", true},
		{hasFailed, notRun, false, "FAILED", false},
		{hasPassed, hasPassed, true, "", true},
		{wasSkipped, wasSkipped, true, "", true},
		{hasFailed, hasFailed, true, "failed with both", true},
		{hasFailed, hasPassed, true, "PASSED WITH UPSTREAM'S OWN, HERE FAILED", false},
		{wasSkipped, hasPassed, true, "PASSED WITH UPSTREAM'S OWN, HERE SKIPPED", false},
		{notRun, hasPassed, true, "PASSED WITH UPSTREAM'S OWN, HERE NOT RUN", false},
		{hasFailed, wasSkipped, true, "FAILED, with upstream's own skipped", false},
		{hasFailed, notRun, true, "FAILED, with upstream's own not run", false},
		{hasPassed, hasFailed, true, "passed here, with upstream's own failed", true},
		{wasSkipped, hasFailed, true, "", true},
	} {
		what, good := weigh(each.ours, each.theirs, each.compared)
		require.Equal(t, each.what, what, each)
		require.Equal(t, each.good, good, each)
	}
}

func TestWorseResultsThanUpstreamsAreNamed(t *testing.T) {
	t.Parallel()

	j := start(t)
	works := spec("works", types.SpecStatePassed, "")
	breaks := spec("breaks", types.SpecStateFailed, "no\nvolume")
	filtered := spec("is filtered", types.SpecStateSkipped, "")
	setup := types.SpecReport{LeafNodeType: types.NodeTypeSynchronizedBeforeSuite, State: types.SpecStateFailed}
	report := func(name string, specs ...types.SpecReport) string {
		return j.report(t, name, types.Report{SpecReports: specs, PreRunStats: types.PreRunStats{SpecsThatWillRun: 2}})
	}
	theirs := report("theirs", works, breaks)

	for name, each := range map[string]struct {
		specs    []types.SpecReport
		baseline string
		code     int
		says     []string
	}{
		"well": {[]types.SpecReport{works, skipped("is", "one\n node"), filtered}, "", 0, []string{
			"hostpathplugin: 1 passed, 0 failed, 1 skipped by the suite, 0 not reached", "skipped 1: one node",
		}},
		"as upstream's own": {[]types.SpecReport{works, breaks}, theirs, 0, []string{
			"upstream's own image: 1 passed, 1 failed", "hostpathplugin: 1 passed, 1 failed", "failed with both: ", "breaks\n      no volume",
		}},
		"better":             {[]types.SpecReport{works, spec("breaks", types.SpecStatePassed, "")}, theirs, 0, []string{"passed here, with upstream's own failed"}},
		"worse":              {[]types.SpecReport{skipped("works", "why"), breaks}, theirs, 1, []string{"HERE SKIPPED", "works\n      why"}},
		"fails":              {[]types.SpecReport{works, breaks}, "", 1, []string{"FAILED: "}},
		"some not reached":   {[]types.SpecReport{works}, "", 1, []string{"1 not reached"}},
		"a failure of setup": {[]types.SpecReport{works, works, setup}, "", 1, []string{"FAILED: SynchronizedBeforeSuite"}},
		"nothing ran":        {nil, "", 1, []string{"0 passed"}},
		"nothing was there":  {[]types.SpecReport{works}, "missing.json", 2, []string{"missing.json"}},
	} {
		output, code := j.runBare(t, "compare", "-report", report("ours", each.specs...), "-baseline", each.baseline)
		require.Equal(t, each.code, code, name+": "+output)

		for _, said := range each.says {
			require.Contains(t, output, said, name)
		}
	}
}

func TestViolationsInLogs(t *testing.T) {
	t.Parallel()

	const ready = `time=1 level=INFO msg=ready endpoint=/csi/csi.sock mode=all driver=csi-mock-1`

	j := start(t)
	logs := filepath.Join(j.directory, "logs")
	require.NoError(t, os.MkdirAll(filepath.Join(logs, "a spec"), 0o700))

	for name, text := range map[string]string{
		"good.log":  ready,
		"proxy.log": `level=INFO msg=ready endpoint=/csi/csi.sock awaitsConnectionsAt=[::]:9000`,
		"bad.log": ready + `
gRPCCall: {"msg":"no"}
level=WARN msg="the CO violates the CSI spec" violation=publish-before-stage object="volume 1" detail="not staged" spec="NSV-4 RPCIRC-2" remedy="stage it"
level=WARN msg="the CO violates the CSI spec" violation=token-unknown object=x detail=y spec=LVE-4 remedy=z
level=WARN msg="the CO has violated the CSI spec" violation=token-unknown object=x count=1 detail=y spec=LVE-4
`,
		"other.txt": ready,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(logs, "a spec", name), []byte(text), 0o600))
	}

	report := j.report(t, "ours", types.Report{SpecReports: []types.SpecReport{spec("works", types.SpecStatePassed, "")}})
	output, code := j.runBare(t, "compare", "-report", report, "-logs", logs)
	require.Zero(t, code, output)
	require.Contains(t, output, "--strict: 2 drivers have served, 2 kinds of violations by the CO\n"+
		"  violated for 1 objects: publish-before-stage (NSV-4 RPCIRC-2)\n  violated for 1 objects: token-unknown (LVE-4)\n")

	_, code = j.runBare(t, "compare", "-report", report, "-logs", filepath.Join(logs, "missing"))
	require.Equal(t, 2, code, "want: missing logs exit with 2")
}

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/onsi/ginkgo/v2/types"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"sigs.k8s.io/yaml"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	rulesOfTest = `
neverRun: ['\[Disruptive\]']
exclusions:
  - {reason: it takes a registry, lacking: registry, specs: ['[Testpattern: a (b)] pulls']}
  - {reason: ours to say, drivers: [one], specs: ['[Testpattern: a (b)] hates one [Slow]']}
skips:
  - {message: raw block, unless: DriverInfo.Capabilities.block, reason: no block}
  - {message: 'support (ext4|xfs) --', unless: DriverInfo.SupportedFsType.$1, reason: no such filesystem}
  - {message: only on one node, if: DriverInfo.Capabilities.singleNodeVolume, reason: one node}
  - {message: not enough nodes, nodes: 2, reason: a small cluster}
  - {message: any, spec: ' allows$', reason: allowed}
`
	driverOfTest = `
DriverInfo:
  SupportedFsType: {"": {}, xfs: {}}
  Capabilities: {block: true, singleNodeVolume: false}
`
)

type judging struct {
	rules, driver, directory string
}

func start(t *testing.T) judging {
	t.Helper()

	directory := t.TempDir()
	j := judging{filepath.Join(directory, "rules.yaml"), filepath.Join(directory, "one.yaml"), directory}

	require.NoError(t, os.WriteFile(j.rules, []byte(rulesOfTest), 0o600))
	require.NoError(t, os.WriteFile(j.driver, []byte(driverOfTest), 0o600))

	return j
}

// run returns what the judge has printed and its exit code.
func (j judging) run(t *testing.T, args ...string) (output string, code int) {
	t.Helper()

	return j.runBare(t, append(args, "-rules", j.rules, "-driver", j.driver)...)
}

func (j judging) runBare(t *testing.T, args ...string) (output string, code int) {
	t.Helper()

	var printed strings.Builder

	code = exitCode(run(args, &printed), &printed)

	return printed.String(), code
}

// judge judges a report of these specs, of which so many were to be run.
func (j judging) judge(t *testing.T, selected int, specs []types.SpecReport, args ...string) (output string, code int) {
	t.Helper()

	// What is excluded is in each report: a suite knows all of its specs.
	specs = append(specs, spec("pulls", types.SpecStateSkipped, ""), spec("hates one [Slow]", types.SpecStateSkipped, ""))
	path := j.report(t, "report", types.Report{SpecReports: specs, PreRunStats: types.PreRunStats{SpecsThatWillRun: selected}})

	return j.run(t, append([]string{"report", "-report", path}, args...)...)
}

// report writes one, and returns where.
func (j judging) report(t *testing.T, name string, report types.Report) string {
	t.Helper()

	data, err := json.Marshal([]types.Report{report})
	require.NoError(t, err)

	path := filepath.Join(j.directory, name+".json")
	require.NoError(t, os.WriteFile(path, data, 0o600))

	return path
}

func spec(text string, state types.SpecState, message string) types.SpecReport {
	return types.SpecReport{
		ContainerHierarchyTexts: []string{"External Storage [Driver: x]", "[Testpattern: a (b)]", ""},
		LeafNodeType:            types.NodeTypeIt, LeafNodeText: text, State: state, Failure: types.Failure{Message: message},
	}
}

func skipped(text, message string) types.SpecReport {
	return spec(text, types.SpecStateSkipped, message)
}

func TestTheSkipExpressionMatchesWhatIsExcluded(t *testing.T) {
	t.Parallel()

	j := start(t)

	for _, each := range []struct {
		lacking string
		match   map[string]bool
	}{
		{"", map[string]bool{
			"[Driver: x] [Testpattern: a (b)] pulls":                 false,
			"[Driver: x] [Testpattern: a (b)] hates one [Slow]":      true,
			"[Driver: x] [Testpattern: a (b)] hates one [Slow] more": false,
			"[Driver: x] [Testpattern: a (b)] stops [Disruptive] it": true,
		}},
		{"registry", map[string]bool{"[Driver: x] [Testpattern: a (b)] pulls": true, "[Driver: x] [Testpattern: a b] pulls": false}},
	} {
		output, code := j.run(t, "skip", "-lacking", each.lacking)
		require.Zero(t, code, output)

		expression := regexp.MustCompile(strings.TrimSpace(output))
		for name, want := range each.match {
			require.Equal(t, want, expression.MatchString("Kubernetes e2e suite External Storage "+name), name)
		}
	}

	output, code := j.run(t, "skip", "-lacking", "records")
	require.Equal(t, 2, code, "want: a missing list exits with 2")
	require.Contains(t, output, "records")
}

func TestOnlyUnexplainedResultsFail(t *testing.T) {
	t.Parallel()

	j := start(t)
	passed := spec("works", types.SpecStatePassed, "")

	for name, each := range map[string]struct {
		specs    []types.SpecReport
		selected int
		args     []string
		code     int
		says     []string
	}{
		"all passed": {
			[]types.SpecReport{passed, passed},
			2, nil, 0,
			[]string{"one: 2 passed, 0 failed, 0 skipped as expected, 0 skipped though claimed, 1 excluded, 0 not reached"},
		},
		"nothing ran": {nil, 0, nil, 1, []string{"0 passed"}},
		"a failure": {
			[]types.SpecReport{passed, spec("breaks", types.SpecStateTimedout, "too\nslow")},
			2, nil, 1,
			[]string{"1 failed", "FAILED: [Testpattern: a (b)] breaks", "too slow"},
		},
		"a failure of the suite's own": {
			[]types.SpecReport{passed, {LeafNodeType: types.NodeTypeSynchronizedBeforeSuite, State: types.SpecStateFailed}},
			1, nil, 1,
			[]string{"FAILED: SynchronizedBeforeSuite"},
		},
		"some not reached": {[]types.SpecReport{passed}, 3, nil, 1, []string{"2 not reached"}},
		"skipped, not claimed": {
			[]types.SpecReport{passed, skipped("is", "doesn't support ext4 -- skipping")},
			2, nil, 0,
			[]string{"1 skipped as expected", "skipped 1: no such filesystem"},
		},
		"skipped, a claim of a kind": {
			[]types.SpecReport{passed, skipped("is", "doesn't support xfs -- skipping")},
			2, nil, 1,
			[]string{"1 skipped though claimed", "[Testpattern: a (b)] is", "doesn't support xfs"},
		},
		"skipped, a claim": {[]types.SpecReport{passed, skipped("is", "no raw block")}, 2, nil, 1, []string{"1 skipped though claimed"}},
		"skipped for what is denied": {
			[]types.SpecReport{passed, skipped("is", "only on one node")}, 2, nil, 1, []string{"1 skipped though claimed"},
		},
		"skipped on one node":  {[]types.SpecReport{passed, skipped("is", "not enough nodes")}, 2, nil, 0, []string{"skipped 1: a small cluster"}},
		"skipped on two nodes": {[]types.SpecReport{passed, skipped("is", "not enough nodes")}, 2, []string{"-nodes", "2"}, 1, nil},
		"skipped, for a reason of its own": {
			[]types.SpecReport{passed, skipped("is", "any")}, 2, nil, 1, []string{"1 skipped though claimed"},
		},
		"skipped, allowed": {[]types.SpecReport{passed, skipped("allows", "any")}, 2, nil, 0, []string{"skipped 1: allowed"}},
		"excluded": {
			[]types.SpecReport{passed},
			1,
			[]string{"-lacking", "registry"},
			0,
			[]string{"2 excluded", "excluded 1: it takes a registry", "excluded 1: ours to say"},
		},
	} {
		output, code := j.judge(t, each.selected, each.specs, each.args...)
		require.Equal(t, each.code, code, "%s: %s", name, output)

		for _, words := range each.says {
			require.Contains(t, output, words, name)
		}
	}
}

func TestUnknownExclusionFails(t *testing.T) {
	t.Parallel()

	j := start(t)
	path := filepath.Join(j.directory, "report.json")
	report, err := json.Marshal([]types.Report{{
		SpecReports: []types.SpecReport{spec("works", types.SpecStatePassed, "")}, PreRunStats: types.PreRunStats{SpecsThatWillRun: 1},
	}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, report, 0o600))

	output, code := j.run(t, "report", "-report", path)
	require.Equal(t, 1, code, "want: a needless exclusion exits with 1")
	require.Contains(t, output, "THE SUITE HAS NO SUCH SPEC: [Testpattern: a (b)] hates one [Slow]")
	require.NotContains(t, output, "pulls")
}

// TestFilesOfTheRepositoryHaveKnownKeys: the suite takes a key that it does not know for
// none, so a misspelt name is silently not tested.
func TestFilesOfTheRepositoryHaveKnownKeys(t *testing.T) {
	t.Parallel()

	j := start(t)
	j.rules = filepath.Join("..", "rules.yaml")

	files, err := filepath.Glob(filepath.Join("..", "*.yaml"))
	require.NoError(t, err)

	known := map[string][]string{
		"": {"StorageClass", "SnapshotClass", "GroupSnapshotClass", "VolumeAttributesClass", "InlineVolumes", "DriverInfo"},
		"DriverInfo": {
			"Name", "MaxFileSize", "SupportedSizeRange", "SupportedFsType", "SupportedMountOption", "Capabilities", "TopologyKeys", "StressTestOptions",
			"VolumeSnapshotStressTestOptions", "VolumeGroupSnapshotStressTestOptions", "VolumeModifyStressTestOptions", "PerformanceTestOptions",
		},
		"Capabilities": {
			"persistence", "block", "exec", "fsGroup", "multipods", "multiplePVsSameID", "readWriteOncePod", "singleNodeVolume", "snapshotDataSource",
			"pvcDataSource", "groupSnapshot", "controllerExpansion", "nodeExpansion", "onlineExpansion", "offlineExpansion", "capacity", "topology",
			"volumeLimits", "capReadOnlyMany", "FSResizeFromSourceNotSupported",
		},
	}

	drivers := 0

	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)

		var content map[string]any
		require.NoError(t, yaml.Unmarshal(data, &content), file)

		info, isDriver := content["DriverInfo"].(map[string]any)
		if !isDriver {
			continue
		}

		drivers++
		j.driver = file
		output, code := j.run(t, "skip")
		require.Zero(t, code, output)
		require.Equal(t, "csi.touchstone.dev", info["Name"])

		for where, keys := range map[string]map[string]any{"": content, "DriverInfo": info, "Capabilities": info["Capabilities"].(map[string]any)} {
			for key := range keys {
				require.Contains(t, known[where], key, file)
			}
		}

		for _, class := range regexp.MustCompile(`FromFile: ([^} ]+)`).FindAllStringSubmatch(string(data), -1) {
			require.FileExists(t, filepath.Join("..", class[1]), file)
		}
	}

	require.Equal(t, 6, drivers, "want: the repository has six drivers' files")
}

func TestTotalMergesReports(t *testing.T) {
	t.Parallel()

	j := start(t)
	one := j.report(t, "one", types.Report{SpecReports: []types.SpecReport{
		spec("works", types.SpecStatePassed, ""), spec("is here", types.SpecStatePassed, ""), skipped("is there", "any"),
	}})
	two := j.report(t, "two", types.Report{SpecReports: []types.SpecReport{
		spec("works", types.SpecStatePassed, ""), skipped("is here", "any"), spec("is there", types.SpecStatePassed, ""), skipped("is nowhere", "any"),
	}})

	output, code := j.runBare(t, "total", one, two)
	require.Zero(t, code, output)
	require.Equal(t, "3 specs passed in one of 2 runs at least, 0 failures\n", output)

	broken := j.report(t, "broken", types.Report{SpecReports: []types.SpecReport{spec("works", types.SpecStateFailed, "no")}})
	output, code = j.runBare(t, "total", one, two, broken)
	require.Equal(t, 1, code, "want: a failure exits with 1")
	require.Contains(t, output, "3 runs at least, 1 failures")

	_, code = j.runBare(t, "total", j.report(t, "nothing", types.Report{}))
	require.Equal(t, 1, code, "want: an empty report exits with 1")

	_, code = j.runBare(t, "total")
	require.Equal(t, 2, code, "want: missing reports exit with 2")
}

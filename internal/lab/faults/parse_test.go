package faults_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/lab/faults"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestMistakesHaveTheirLine: each mistake is refused with its line and with words that name it.
func TestMistakesHaveTheirLine(t *testing.T) {
	t.Parallel()

	for text, want := range map[string][]string{
		"rules:\n  - act: {unimplemented: true}\n    mach: {}\n":                                                                     {"line 3", "mach"},
		"rules:\n  - match: {method: Probe}\n":                                                                                       {"line 2", "nothing to do"},
		"rules:\n  - match: {method: Prob}\n    act: {unimplemented: true}\n":                                                        {"line 2", "no RPC matches"},
		"- act:\n    before: {code: OKAY}\n":                                                                                         {"line 2", "no code"},
		"- act:\n    before: {code: OK}\n":                                                                                           {"line 2", "no code"},
		"- act:\n    before: {message: x}\n":                                                                                         {"line 2", "no code"},
		"- act:\n    before: {code: ABORTED, details: [{\"@type\": a/b.C}]}\n":                                                       {"line 2", "detail"},
		"- match: {calls: 3-1}\n  act: {unimplemented: true}\n":                                                                      {"line 1", "calls"},
		"- match: {calls: every 0}\n  act: {unimplemented: true}\n":                                                                  {"line 1", "calls"},
		"- match: {probability: 1.5}\n  act: {unimplemented: true}\n":                                                                {"line 1", "between 0 and 1"},
		"- match:\n    method: Probe\n    where: [\"volume_id == x\"]\n  act: {unimplemented: true}":                                 {"line 2", "ProbeRequest has no field volume_id"},
		"- match:\n    where:\n      - capacity_range.required_bytes > many\n    method: CreateVolume\n  act: {unimplemented: true}": {"required_bytes"},
		"- match: {where: [\"volume_id is x\"]}\n  act: {unimplemented: true}":                                                       {"line 1", "OPERATOR"},
		"- match: {method: CreateVolume, where: [\"name > 3\"]}\n  act: {unimplemented: true}":                                       {"not a number"},
		"- match: {at: nowhere}\n  act: {crash: true}\n":                                                                             {"line 1", "volume-allocated"},
		"- match: {at: volume-allocated}\n  act: {lose: hang}\n":                                                                     {"line 1", "not possible"},
		"- match: {at: volume-allocated, method: CreateVolume}\n  act: {crash: true}\n":                                              {"leave out method"},
		"- act: {lose: it}\n":                         {"line 1", "hang, reset"},
		"- match: {method: Probe}\n  act: {cut: 1}\n": {"cut is for streams"},
		"- act: {cut: -1}\n":                          {"too small"},
		"- act: {delay: {before: soon}}\n":            {"line 1", "soon"},
		"- act: {delay: {}}\n":                        {"none of before, after"},
		"- match: {method: Probe}\n  act: {patch: [{path: redy, unset: true}]}\n":                       {"ProbeResponse has no field redy"},
		"- match: {method: Probe}\n  act: {patch: [{path: ready, value: soon}]}\n":                      {"not a value"},
		"- match: {method: Probe}\n  act: {patch: [{path: ready, value: true, unset: true}]}\n":         {"want one"},
		"- match: {method: Probe}\n  act: {patch: [{path: ready}]}\n":                                   {"want one"},
		"- match: {method: Probe}\n  act: {patch: [{path: ready..value, unset: true}]}\n":               {"line 2", "not a path"},
		"- match: {method: CreateVolume}\n  act: {patch: [{path: volume.capacity_bytes, repeat: 3}]}\n": {"cannot be repeated"},
		"- match: {method: Probe}\n  act: {lists: {entries: omit}}\n":                                   {"neither entries"},
		"- match: {method: NodeGetCapabilities}\n  act: {capabilities: {without: [EXPAND]}}\n":          {"no capability"},
		"- match: {method: Probe}\n  act: {another: {volume_id: true}}\n":                               {"another is for CreateVolume"},
		"- act: {condition: {status: BAD, reason: X}}\n":                                                {"line 1", "DEGRADED"},
		"- match: {method: Probe}\n  act: {condition: {status: DEGRADED, reason: X}}\n":                 {"no call triggers"},
		"- act: {condition: {status: DEGRADED, reason: X}, crash: true}\n":                              {"two rules"},
		"- until: {hits: 1}\n  act: {condition: {status: DEGRADED, reason: X}}\n":                       {"line 2", "no hits"},
		"- until: {}\n  act: {crash: true}\n":                                                           {"until is empty"},
		"- name: a b\n  act: {crash: true}\n":                                                           {"line 1", "space"},
		"- name: a\n  act: {crash: true}\n- name: a\n  act: {crash: true}\n":                            {"line 3", "line 1"},
		"rules: [\n":                    {"line"},
		"just text":                     {"line 1", "neither a rule"},
		"act: {crash: true}\n---\na: b": {"second document"},
	} {
		_, err := faults.Parse([]byte(text))
		require.ErrorIs(t, err, faults.ErrRule, text)

		for _, word := range want {
			require.ErrorContains(t, err, word, text)
		}
	}
}

// TestEachMistakeOfADocumentIsReported at once.
func TestEachMistakeOfADocumentIsReported(t *testing.T) {
	t.Parallel()

	_, err := faults.Parse([]byte("- match: {at: nowhere}\n  act: {lose: it}\n- match: {calls: x}\n"))
	require.ErrorContains(t, err, "line 1")
	require.ErrorContains(t, err, "line 2")
	require.ErrorContains(t, err, "line 3")
}

// TestRulesAreWrittenAsTheyAreRead: List returns rules that Add accepts.
func TestRulesAreWrittenAsTheyAreRead(t *testing.T) {
	t.Parallel()

	files, err := filepath.Glob("../../../examples/faults/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files, "want: the examples have rules")

	all := []string{`
name: all
match: {method: "Create*", volume: v*, where: ['name != ""'], calls: 1-3, probability: 0.5}
until: {hits: 3, after: 1m, time: 2030-01-01T00:00:00Z}
act:
  before: {code: ABORTED, message: x, details: [{"@type": type.googleapis.com/google.rpc.RetryInfo, retryDelay: 5s}]}
  delay: {before: 1s, after: 2s}
  patch: [{path: volume.volume_id, values: [a, b]}, {path: 'volume.volume_context["k"]', value: v}]
`}

	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)

		all = append(all, string(text))
	}

	for _, text := range all {
		first, err := faults.Parse([]byte(text))
		require.NoError(t, err, text)

		for _, rule := range first.Rules {
			written, err := yaml.Marshal(rule)
			require.NoError(t, err)

			again, err := faults.Parse(written)
			require.NoError(t, err, "%s", written)

			rewritten, err := yaml.Marshal(again.Rules[0])
			require.NoError(t, err)
			require.Equal(t, string(written), string(rewritten))
		}
	}
}

func TestCallsSelect(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]string{
		"5": "00001000", "1-3": "11100000", "6-": "00000111", "2,4": "01010000", "1-2,7": "11000010",
		"odd": "10101010", "even": "01010101", "every 3": "00100100",
	} {
		file, err := faults.Parse([]byte("match: {calls: \"" + text + "\"}\nact: {crash: true}"))
		require.NoError(t, err, text)

		var got strings.Builder

		for number := 1; number <= len(want); number++ {
			if file.Rules[0].Match.Calls.Has(number) {
				got.WriteByte('1')
			} else {
				got.WriteByte('0')
			}
		}

		require.Equal(t, want, got.String(), text)
	}
}

func TestGlobsMatchTheWholeText(t *testing.T) {
	t.Parallel()

	for pattern, matches := range map[string]map[string]bool{
		"Node*":                     {"NodeStageVolume": true, "XNode": false, "Node": true},
		"CreateVolume,DeleteVolume": {"CreateVolume": true, "DeleteVolume": true, "CreateVolumeGroupSnapshot": false},
		"?robe":                     {"Probe": true, "probe": true, "robe": false},
	} {
		file, err := faults.Parse([]byte("match: {volume: \"" + pattern + "\"}\nact: {crash: true}"))
		require.NoError(t, err)

		for text, want := range matches {
			require.Equal(t, want, file.Rules[0].Match.Volume.Match(text), "%s on %s", pattern, text)
		}
	}
}

func TestExpressionsCompareFields(t *testing.T) {
	t.Parallel()

	request := &csi.CreateVolumeRequest{
		Name: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 10 << 30}, Parameters: map[string]string{"pool": "fast-1"},
		VolumeCapabilities: []*csi.VolumeCapability{
			{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}},
			{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY}},
		},
	}

	for text, want := range map[string]bool{
		`capacity_range.required_bytes > 10Gi`:                               false,
		`capacity_range.required_bytes >= 10Gi`:                              true,
		`capacity_range.required_bytes == 10Gi`:                              true,
		`capacity_range.required_bytes < 11Gi`:                               true,
		`capacity_range.required_bytes <= 1`:                                 false,
		`capacity_range.limit_bytes == 0`:                                    true,
		`capacity_range == null`:                                             false,
		`accessibility_requirements == null`:                                 true,
		`volume_content_source != null`:                                      false,
		`volume_content_source.volume.volume_id == ""`:                       true,
		`name == pvc-1`:                                                      true,
		`name == "pvc-1"`:                                                    true,
		`name != pvc-1`:                                                      false,
		`name matches pvc-*`:                                                 true,
		`name matches "x*"`:                                                  false,
		`secrets["token"] == ""`:                                             true,
		`parameters["pool"] matches fast*`:                                   true,
		`parameters["pool"] == null`:                                         false,
		`parameters["other"] == null`:                                        true,
		`secrets == null`:                                                    true,
		`volume_capabilities[0].access_mode.mode == SINGLE_NODE_WRITER`:      true,
		`volume_capabilities[1].access_mode.mode == 3`:                       true,
		`volume_capabilities[2].access_mode.mode != 3`:                       false,
		`volume_capabilities[*].access_mode.mode == MULTI_NODE_READER_ONLY`:  true,
		`volume_capabilities[*].access_mode.mode == MULTI_NODE_MULTI_WRITER`: false,
	} {
		document, err := yaml.Marshal(map[string]any{
			"match": map[string]any{"method": "CreateVolume", "where": []string{text}}, "act": map[string]any{"crash": true},
		})
		require.NoError(t, err)

		file, err := faults.Parse(document)
		require.NoError(t, err, text)
		require.Equal(t, want, file.Rules[0].Match.Where[0].Holds(request.ProtoReflect()), text)
	}

	require.True(t, proto.Equal(request, proto.Clone(request)), "an expression has changed the request")
}

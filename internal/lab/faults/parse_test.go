package faults_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"

	"github.com/touchstone-csi/touchstone/internal/lab/faults"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestMistakesNameTheirLine: each mistake is refused with its line and with words that name it.
func TestMistakesNameTheirLine(t *testing.T) {
	t.Parallel()

	for text, want := range map[string][]string{
		"rules:\n  - act: {unimplemented: true}\n    mach: {}\n":                                                             {"line 3", "mach"},
		"rules:\n  - match: {method: Probe}\n":                                                                               {"line 2", "nothing to do"},
		"rules:\n  - match: {method: Prob}\n    act: {unimplemented: true}\n":                                                {"line 2", "no RPC matches"},
		"- act:\n    before: {code: OKAY}\n":                                                                                 {"line 2", "no code"},
		"- act:\n    before: {code: OK}\n":                                                                                   {"line 2", "no code"},
		"- act:\n    before: {message: x}\n":                                                                                 {"line 2", "no code"},
		"- act:\n    before: {code: ABORTED, details: [{\"@type\": a/b.C}]}\n":                                               {"line 2", "detail"},
		"- match: {calls: 3-1}\n  act: {unimplemented: true}\n":                                                              {"line 1", "calls"},
		"- match: {calls: every 0}\n  act: {unimplemented: true}\n":                                                          {"line 1", "calls"},
		"- match: {probability: 1.5}\n  act: {unimplemented: true}\n":                                                        {"line 1", "between 0 and 1"},
		"- match:\n    method: Probe\n    where: .volume_id == \"x\"\n  act: {unimplemented: true}":                          {"line 3", "ProbeRequest has no field volume_id"},
		"- match:\n    where: .capacity_range.required_bytes > many\n    method: CreateVolume\n  act: {unimplemented: true}": {"line 2", "many"},
		"- match: {where: .volume_id is x}\n  act: {unimplemented: true}":                                                    {"line 1", "unexpected token"},
		"- match: {method: CreateVolume, where: .name > 3}\n  act: {unimplemented: true}":                                    {"line 1", "of type string"},
		"- match: {method: CreateVolume, where: $hit > 3}\n  act: {unimplemented: true}":                                     {"line 1", "$hit has no value here"},
		"- match: {where: [.volume_id]}\n  act: {unimplemented: true}":                                                       {"line 1", "a jq program is a text"},
		"- match: {method: \"[\"}\n  act: {unimplemented: true}":                                                             {"line 1", "not a pattern"},
		"- match: {method: [Probe, \"\"]}\n  act: {unimplemented: true}":                                                     {"line 1", "not a pattern"},
		"- match: {volume: []}\n  act: {unimplemented: true}":                                                                {"line 1", "a list of them"},
		"- match: {method: \"Probe,GetPluginInfo\"}\n  act: {unimplemented: true}":                                           {"line 1", "no RPC matches"},
		"- match: {at: nowhere}\n  act: {crash: true}\n":                                                                     {"line 1", "volume-allocated"},
		"- match: {at: volume-allocated}\n  act: {lose: hang}\n":                                                             {"line 1", "not possible"},
		"- match: {at: volume-allocated, method: CreateVolume}\n  act: {crash: true}\n":                                      {"leave out method"},
		"- act: {before: {code: ABORTED}, partial: 1}\n":                                                                     {"line 1", "partial is no key here", "patch", "unimplemented"},
		"- match: {secrets: x}\n  act: {unimplemented: true}\n":                                                              {"line 1", "secrets is no key here", "where"},
		"- act: {delay: 5s}\n":                                                                                               {"line 1", "a mapping is wanted, with the keys after, before"},
		"- act: {delay: {before: [1]}}\n":                                                                                    {"line 1", "a duration such as 30s"},
		"- match: {where: .name = \"a\"}\n  act: {unimplemented: true}\n":                                                    {"line 1", "compare by =="},
		"- act: {patch: .entries |= .[:1]}\n":                                                                                {"quote a jq program"},
		"- match: {method: CreateVolume}\n  act: {patch: .volume}\n":                                                         {"line 2", "no whole CreateVolumeResponse"},
		"- act: {lose: it}\n":                                                                                                {"line 1", "hang, reset"},
		"- match: {method: Probe}\n  act: {cut: 1}\n":                                                                        {"cut is for streams"},
		"- act: {cut: -1}\n":                                                                                                 {"too small"},
		"- act: {delay: {before: soon}}\n":                                                                                   {"line 1", "soon"},
		"- act: {delay: {}}\n":                                                                                               {"none of before, after"},
		"- match: {method: Probe}\n  act: {patch: del(.redy)}\n":                                                             {"line 2", "ProbeResponse has no field redy"},
		"- match: {method: Probe}\n  act: {patch: .ready = \"soon\"}\n":                                                      {"line 2", "invalid value for bool"},
		"- match: {method: Probe}\n  act: {patch: \".ready, .ready = true\"}\n":                                              {"line 2", "there are several"},
		"- match: {method: Probe}\n  act: {patch: \"{redy: true}\"}\n":                                                       {"line 2", "redy"},
		"- match: {method: Probe}\n  act:\n    patch: |\n      .ready = true\n      | ]\n":                                   {"line 3", "line 2 of the program"},
		"- match: {method: Probe}\n  act: {patch: empty}\n":                                                                  {"line 2", "there is none"},
		"- match: {method: Probe}\n  act: {patch: [{path: ready}]}\n":                                                        {"line 2", "a jq program is a text"},
		"- match: {method: Probe}\n  act: {patch: .ready..value}\n":                                                          {"line 2", "unexpected token"},
		"- match: {method: Probe}\n  act: {patch: last(repeat(.))}\n":                                                        {"line 2", "longer than"},
		"- match: {method: Probe}\n  act:\n    patch: |\n      .ready = true\n      | .redy\n":                               {"line 3", "redy"},
		"- match: {method: Probe}\n  act: {patch: '.entries |= .[1:]'}\n":                                                    {"no field entries"},
		"- match: {method: NodeGetCapabilities}\n  act: {patch: 'del(.capabilities[] | select(.rpc.type == \"EXPAND\"))'}\n": {"no value of Type"},
		"- match: {method: CreateVolume}\n  act: {patch: .volume.capacity_bytes = 1e30}\n":                                   {"invalid value for int64"},
		"- match: {method: Probe}\n  act: {endless: true}\n":                                                                 {"has no next_token"},
		"- act: {condition: {status: BAD, reason: X}}\n":                                                                     {"line 1", "DEGRADED"},
		"- match: {method: Probe}\n  act: {condition: {status: DEGRADED, reason: X}}\n":                                      {"no call triggers"},
		"- act: {condition: {status: DEGRADED, reason: X}, crash: true}\n":                                                   {"two rules"},
		"- until: {hits: 1}\n  act: {condition: {status: DEGRADED, reason: X}}\n":                                            {"line 2", "no hits"},
		"- until: {}\n  act: {crash: true}\n":                                                                                {"until is empty"},
		"- name: a b\n  act: {crash: true}\n":                                                                                {"line 1", "space"},
		"- name: a\n  act: {crash: true}\n- name: a\n  act: {crash: true}\n":                                                 {"line 3", "line 1"},
		"rules: [\n":                           {"line"},
		"act: {condition: {status: DEGRADED}}": {"a status and a reason"},
		"act: {condition: {reason: X}}":        {"a status and a reason"},
		"just text":                            {"line 1", "neither a rule"},
		"act: {crash: true}\n---\na: b":        {"second document"},
	} {
		_, err := faults.Parse([]byte(text))
		require.ErrorIs(t, err, faults.ErrRule, text)

		for _, word := range want {
			errtext.Require(t, err, word, text)
		}
	}
}

// TestEachMistakeOfADocumentIsReported at once.
func TestEachMistakeOfADocumentIsReported(t *testing.T) {
	t.Parallel()

	_, err := faults.Parse([]byte("- match: {at: nowhere}\n  act: {lose: it}\n- match: {calls: x}\n"))
	errtext.Require(t, err, "line 1")
	errtext.Require(t, err, "line 2")
	errtext.Require(t, err, "line 3")
}

// TestRulesRoundTrip: List returns rules that Add accepts.
func TestRulesRoundTrip(t *testing.T) {
	t.Parallel()

	files, err := filepath.Glob("../../../examples/faults/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files, "want: the examples have rules")

	all := []string{`
name: all
match: {method: "Create*", volume: ["v*", "w?"], where: '.name != ""', calls: 1-3, probability: 0.5}
until: {hits: 3, after: 1m, time: 2030-01-01T00:00:00Z}
act:
  before: {code: ABORTED, message: x, details: [{"@type": type.googleapis.com/google.rpc.RetryInfo, retryDelay: 5s}]}
  delay: {before: 1s, after: 2s}
  patch: |
    .volume.volume_id = (["a", "b"] | .[$hit % 2])
    | .volume.volume_context.k = "v"
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

func TestCallsAreSelectedByTheirNumber(t *testing.T) {
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

func TestPatternsMatchTheWholeText(t *testing.T) {
	t.Parallel()

	for pattern, matches := range map[string]map[string]bool{
		"\"Node*\"":                    {"NodeStageVolume": true, "XNode": false, "Node": true},
		"[CreateVolume, DeleteVolume]": {"CreateVolume": true, "DeleteVolume": true, "CreateVolumeGroupSnapshot": false},
		"\"?robe\"":                    {"Probe": true, "probe": true, "robe": false},
	} {
		file, err := faults.Parse([]byte("match: {volume: " + pattern + "}\nact: {crash: true}"))
		require.NoError(t, err)

		for text, want := range matches {
			require.Equal(t, want, file.Rules[0].Match.Volume.Match(text), "%s on %s", pattern, text)
		}
	}
}

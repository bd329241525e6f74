package faults_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/lab/faults"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

func deleteVolume(ctx context.Context, i *faults.Injector, id string) error {
	_, err := i.Unary(ctx, &csi.DeleteVolumeRequest{VolumeId: id}, &grpc.UnaryServerInfo{FullMethod: "/csi.v1.Controller/DeleteVolume"},
		func(context.Context, any) (any, error) { return &csi.DeleteVolumeResponse{}, nil })

	return err
}

func add(t *testing.T, i *faults.Injector, rule string) {
	t.Helper()

	_, err := i.Add([]byte(rule))
	require.NoError(t, err)
}

// TestTheSameSeedHasTheSameHits, whatever other rules do.
func TestTheSameSeedHasTheSameHits(t *testing.T) {
	t.Parallel()

	hits := func(seed int, others ...string) string {
		i := faults.New(faults.Config{})
		add(t, i, fmt.Sprintf("seed: %d\nrules: [{name: some, match: {probability: 0.3}, act: {before: {code: ABORTED}}}]", seed))

		for _, other := range others {
			add(t, i, other)
		}

		var got strings.Builder

		for range 100 {
			if deleteVolume(t.Context(), i, "v") != nil {
				got.WriteByte('x')
			} else {
				got.WriteByte('.')
			}
		}

		return got.String()
	}

	first := hits(7)
	require.Equal(t, first, hits(7))
	require.Equal(t, first, hits(7, "{match: {probability: 0.5}, act: {delay: {after: 1ns}}}"))
	require.NotEqual(t, first, hits(8), "want: another seed has other hits")
	require.InDelta(t, 30, strings.Count(first, "x"), 15, "want: about half of the calls are hit")
}

func TestRuleEndsAsItsUntilSays(t *testing.T) {
	t.Parallel()

	for until, want := range map[string][]codes.Code{
		"{hits: 2}":                    {codes.Aborted, codes.Aborted, codes.OK},
		"{time: 2001-01-01T00:00:00Z}": {codes.OK},
		"{after: 1h}":                  {codes.Aborted},
		"{hits: 1, after: 1h}":         {codes.Aborted, codes.OK},
		"{after: 1ns}":                 {codes.OK},
	} {
		i := faults.New(faults.Config{})
		add(t, i, "{until: "+until+", act: {before: {code: ABORTED}}}")

		for number, code := range want {
			rpccode.Require(t, deleteVolume(t.Context(), i, "v"), code, "%s, call %d", until, number)
		}

		listed, _ := i.List()
		require.Equal(t, want[len(want)-1] == codes.OK, listed[0].Ended, until)
	}
}

func TestRulesMatchObjects(t *testing.T) {
	t.Parallel()

	i := faults.New(faults.Config{NodeID: "n1", Names: func(kind string) []faults.Object {
		return map[string][]faults.Object{"volume": {{ID: "id-1", Name: "pvc-1"}, {ID: "id-2", Name: "other"}}}[kind]
	}})

	for match, want := range map[string][2]bool{
		"{volume: id-1}":  {true, false},
		"{volume: id-*}":  {true, true},
		"{volume: pvc-*}": {true, false},
		"{volume: x*}":    {false, false},
		"{snapshot: '*'}": {false, false},
		"{node: n1}":      {false, false},
	} {
		add(t, i, "{match: "+match+", act: {before: {code: ABORTED}}}")
		require.Equal(t, want[0], deleteVolume(t.Context(), i, "id-1") != nil, match)
		require.Equal(t, want[1], deleteVolume(t.Context(), i, "id-2") != nil, match)

		_, err := i.Clear("")
		require.NoError(t, err)
	}
}

func TestRulesMatchTheNodeOfARequest(t *testing.T) {
	t.Parallel()

	i := faults.New(faults.Config{NodeID: "own"})

	detach := func(node string) error {
		_, err := i.Unary(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: "id", NodeId: node},
			&grpc.UnaryServerInfo{FullMethod: csi.Controller_ControllerUnpublishVolume_FullMethodName},
			func(context.Context, any) (any, error) { return &csi.ControllerUnpublishVolumeResponse{}, nil })

		return err
	}

	for pattern, want := range map[string][3]bool{"'*'": {true, true, false}, "n*": {true, false, false}, "own": {false, false, false}} {
		add(t, i, "{match: {node: "+pattern+"}, act: {before: {code: ABORTED}}}")
		require.Equal(t, want[0], detach("n1") != nil, "want: %s matches node n1 or not", pattern)
		require.Equal(t, want[1], detach("") != nil, "want: %s matches a request for all nodes or not", pattern)
		require.Equal(t, want[2], deleteVolume(t.Context(), i, "id") != nil, "want: %s does not match a request without node_id", pattern)

		_, err := i.Clear("")
		require.NoError(t, err)
	}
}

// TestPreviousIsKeptForNewNames: more volumes are created than names are remembered.
func TestPreviousIsKeptForNewNames(t *testing.T) {
	t.Parallel()

	i := faults.New(faults.Config{})
	add(t, i, `{match: {method: CreateVolume}, act: {patch: 'if $previous then .volume.volume_id = "another"
		| .volume.capacity_bytes = $previous.volume.capacity_bytes else . end'}}`)

	create := func(name string, capacity int64) *csi.Volume {
		response, err := i.Unary(t.Context(), &csi.CreateVolumeRequest{Name: name}, &grpc.UnaryServerInfo{FullMethod: "/csi.v1.Controller/CreateVolume"},
			func(context.Context, any) (any, error) {
				return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "id", CapacityBytes: capacity}}, nil
			})
		require.NoError(t, err)

		created, ok := response.(*csi.CreateVolumeResponse)
		require.True(t, ok, "want: a CreateVolumeResponse")

		return created.GetVolume()
	}

	for number := range 10_001 {
		require.Equal(t, "id", create(fmt.Sprintf("name-%d", number), 1).GetVolumeId())
	}

	again := create("name-10000", 2)
	require.NotEqual(t, "id", again.GetVolumeId(), "the id of the first response")
	require.EqualValues(t, 1, again.GetCapacityBytes(), "stale")
}

func TestNamesAreUnique(t *testing.T) {
	t.Parallel()

	i := faults.New(faults.Config{})
	add(t, i, "{name: a, act: {unimplemented: true}}")

	_, err := i.Add([]byte("[{name: b, act: {unimplemented: true}}, {name: a, act: {unimplemented: true}}]"))
	require.ErrorIs(t, err, faults.ErrExists)

	_, err = i.Add([]byte("[{name: c, act: {unimplemented: true}}, {name: d, act: {start: {delay: 1s}}}]"))
	errtext.Require(t, err, "--faults", "want: an act at the start is refused in a running driver")

	listed, _ := i.List()
	require.Len(t, listed, 1, "none of several rules is added")

	_, err = i.Clear("b")
	require.ErrorIs(t, err, faults.ErrUnknown)

	_, err = i.Release("nothing")
	require.ErrorIs(t, err, faults.ErrUnknown)
}

func TestConditionsAffectTheirVolumesAndView(t *testing.T) {
	t.Parallel()

	changed := 0
	i := faults.New(faults.Config{ConditionsChanged: func() { changed++ }})
	add(t, i, "{name: bad, match: {volume: v*}, act: {condition: {status: DATA_LOSS, reason: Lost, view: node}}}")
	require.Equal(t, 1, changed, "want: a new condition is reported as a change")
	require.Equal(t, []health.Entry{{Status: health.DataLoss, Reason: "Lost", Message: "fault rule bad"}}, i.Entries("node", "v1"))
	require.Empty(t, i.Entries("controller", "v1"), "want: the condition is not of another view")
	require.Empty(t, i.Entries("storage", "v1"), "want: the condition is not of the storage")
	require.Empty(t, i.Entries("node", "w1"), "want: the condition is not of another volume")

	_, err := i.Clear("bad")
	require.NoError(t, err)
	require.Equal(t, 2, changed, "want: a cleared condition is reported as a change")
	require.Empty(t, i.Entries("node", "v1"), "want: the cleared condition is gone")
}

// followed is an Injector that follows a file of rules.
type followed struct {
	*faults.Injector

	path string
}

func follow(t *testing.T, text string) *followed {
	t.Helper()

	directory := filepath.Join(t.TempDir(), "rules")
	require.NoError(t, os.Mkdir(directory, 0o700))

	f := &followed{faults.New(faults.Config{}), filepath.Join(directory, "rules.yaml")}
	f.write(t, text)
	require.NoError(t, f.Load(f.path))

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})

	go func() {
		defer close(ended)
		f.Follow(ctx, f.path)
	}()

	t.Cleanup(func() {
		cancel()
		await.Receive(t, ended, "the end of following the file")
	})

	return f
}

func (f *followed) write(t *testing.T, text string) {
	t.Helper()
	require.NoError(t, replace(f.path, text))
}

// replace replaces a file as editors do.
func replace(path, text string) error {
	return errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path))
}

func (f *followed) until(t *testing.T, what string, is func([]faults.Status, string) bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		listed, problem := f.List()

		return is(listed, problem)
	}, 30*time.Second, time.Millisecond, what)
}

// has returns whether these rules are active, without or with a problem of the file.
func has(part string, names ...string) func([]faults.Status, string) bool {
	return func(listed []faults.Status, problem string) bool {
		got := make([]string, 0, len(listed))
		for _, each := range listed {
			got = append(got, each.Name)
		}

		return slices.Equal(names, got) && (problem == "") == (part == "") && strings.Contains(problem, part)
	}
}

const firstRule = "- {name: first, act: {before: {code: ABORTED}}}\n"

// TestFileChangesAreApplied: a changed file replaces its rules, those that are as before keep their
// hits, a broken one leaves them as they are and is reported.
func TestFileChangesAreApplied(t *testing.T) {
	t.Parallel()

	f := follow(t, firstRule)
	rpccode.Require(t, deleteVolume(t.Context(), f.Injector, "v"), codes.Aborted)

	f.write(t, firstRule+"- {name: second, act: {unimplemented: true}}\n")
	f.until(t, "the second rule is there, and the first keeps its hits", func(listed []faults.Status, problem string) bool {
		return len(listed) == 2 && listed[0].Hits == 1 && problem == ""
	})

	f.write(t, "\n- {name: third, act: {}}\n")
	f.until(t, "both rules stay, and the mistake is reported", func(listed []faults.Status, problem string) bool {
		return len(listed) == 2 && strings.Contains(problem, "line 2")
	})

	f.write(t, "[]\n")
	f.until(t, "no rule is left", func(listed []faults.Status, problem string) bool { return len(listed) == 0 && problem == "" })
}

// TestRestoredFileClearsItsProblem: each way to make the file unusable is undone, twice, and no
// report of it is left.
func TestRestoredFileClearsItsProblem(t *testing.T) {
	t.Parallel()

	for name, broken := range map[string]struct {
		fail    func(path string) error
		problem string
	}{
		"removed":           {os.Remove, "no such file"},
		"a mistake":         {func(path string) error { return replace(path, "- {name: third, act: {}}\n") }, "line 1"},
		"directory removed": {func(path string) error { return os.RemoveAll(filepath.Dir(path)) }, "no such file"},
		"directory moved": {func(path string) error {
			return os.Rename(filepath.Dir(path), fmt.Sprint(filepath.Dir(path), time.Now().UnixNano()))
		}, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := follow(t, firstRule+"- {name: cleared, act: {unimplemented: true}}\n")
			_, err := f.Clear("cleared")
			require.NoError(t, err)

			for range 2 {
				require.NoError(t, broken.fail(f.path))
				f.until(t, "the problem is reported", has(broken.problem, "first"))

				require.NoError(t, os.MkdirAll(filepath.Dir(f.path), 0o700))
				f.write(t, firstRule+"- {name: cleared, act: {unimplemented: true}}\n")
				f.until(t, "the report is gone, and the cleared rule stays cleared", has("", "first"))
			}

			f.write(t, firstRule+"- {name: next, act: {unimplemented: true}}\n")
			f.until(t, "a change is applied", has("", "first", "next"))
		})
	}
}

// TestRefusedFileIsAppliedLater: clearing the conflicting rule is enough.
func TestRefusedFileIsAppliedLater(t *testing.T) {
	t.Parallel()

	f := follow(t, firstRule)
	add(t, f.Injector, "{name: second, act: {unimplemented: true}}")

	f.write(t, firstRule+"- {name: second, act: {lose: hang}}\n")
	f.until(t, "the name is taken", has("second was added at run time", "first", "second"))

	_, err := f.Clear("second")
	require.NoError(t, err)
	f.until(t, "the rule of the file is active", has("", "first", "second"))
}

func TestClearingEndsWaits(t *testing.T) {
	t.Parallel()

	for _, act := range []string{"hold: here", "delay: {before: 1h}", "lose: hang"} {
		i := faults.New(faults.Config{})
		add(t, i, "{act: {"+act+"}}")

		ended := make(chan error, 1)

		go func() { ended <- deleteVolume(t.Context(), i, "v") }()

		require.Eventually(t, func() bool {
			listed, _ := i.List()

			return listed[0].Hits == 1
		}, 30*time.Second, time.Millisecond, "want: the call waits in the rule")

		_, err := i.Clear("")
		require.NoError(t, err)

		select {
		case <-ended:
		case <-time.After(30 * time.Second):
			t.Fatal("the call still waits: " + act)
		}
	}
}

// TestACallThatIsGivenUpEndsItsWait, and goes no further.
func TestACallThatIsGivenUpEndsItsWait(t *testing.T) {
	t.Parallel()

	ended, end := context.WithCancel(t.Context())
	end()

	for _, act := range []string{"hold: here", "delay: {before: 1h}", "delay: {after: 1h}", "lose: hang"} {
		i := faults.New(faults.Config{})
		add(t, i, "{act: {"+act+"}}")
		rpccode.Require(t, deleteVolume(ended, i, "v"), codes.Canceled, "%s", act)
	}
}

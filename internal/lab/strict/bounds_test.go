package strict_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/lab/strict"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// failAt fails a request at each of the times after the start, and then begins it once more.
func (f *fixture) failAt(id string, offsets ...time.Duration) {
	f.t.Helper()

	start := f.now
	for _, offset := range offsets {
		f.now = start.Add(offset)
		f.fail(&csi.DeleteVolumeRequest{VolumeId: id}, codes.Internal)
	}
}

func TestRetriesWithinASecondOfThreeFailures(t *testing.T) {
	t.Parallel()

	const soon = time.Millisecond

	for name, test := range map[string]struct {
		offsets []time.Duration
		want    int
	}{
		"the third try":           {[]time.Duration{0, 0, 0}, 0},
		"the fourth at once":      {[]time.Duration{0, 0, 0, 0}, 1},
		"the fourth in a second":  {[]time.Duration{0, soon, soon, time.Second}, 1},
		"the fourth later":        {[]time.Duration{0, soon, soon, time.Second + 1}, 0},
		"the fifth, after a rest": {[]time.Duration{0, time.Minute, time.Minute, time.Minute, time.Minute}, 1},
	} {
		f := newFixture(t, strict.Observe)
		f.failAt("v", test.offsets...)
		require.Len(t, f.List(), test.want, "want: %s is a retry without backoff or not", name)
	}

	f := newFixture(t, strict.Observe)
	f.failAt("v", 0, 0, 0)
	f.failAt("w", 0)
	f.begin(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: "v"})(nil, errFailed)
	require.Empty(t, f.List(), "want: other requests are no retries")

	f.begin(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "v", Secrets: map[string]string{"new": "x"}})(&csi.DeleteVolumeResponse{}, nil)
	require.Equal(t, []string{"retry-without-backoff"}, f.ids(), "want: other secrets make no other request")
	f.Clear()
	f.failAt("v", 0)
	require.Empty(t, f.List(), "want: a success ends the failures before it")
}

// TestFailuresAreBounded has more failing requests than are remembered: those outside of the window are
// forgotten, and all if that is not enough.
func TestFailuresAreBounded(t *testing.T) {
	t.Parallel()

	for wait, want := range map[time.Duration]int{0: 0, time.Second: 0, time.Second + 1: 1} {
		f := newFixture(t, strict.Observe)
		for number := range 9999 {
			f.failAt(strconv.Itoa(number), 0)
		}

		f.now = f.now.Add(wait)
		f.failAt("v", 0, 0, 0)
		f.failAt("one more", 0)
		f.failAt("v", 0)
		require.Len(t, f.List(), want, "want: the failures of v are remembered or not, %v after the others", wait)
	}
}

// TestVolumesAreBounded has more volumes than are remembered: a tenth is forgotten, those that no call was
// about for the longest time.
func TestVolumesAreBounded(t *testing.T) {
	t.Parallel()

	f := newFixture(t, strict.Observe)

	for number := range 10_000 {
		f.id = strconv.Itoa(number)
		f.stage()
	}

	f.id = "0"
	f.stage()
	f.id = "10000"
	f.stage()

	for id, want := range map[string]int{"0": 1, "1": 0, "1000": 0, "1001": 1, "10000": 1} {
		f.id = id
		f.Clear()
		f.detach()
		require.Len(t, f.List(), want, "want: the staging of volume %s is remembered or not", id)
	}
}

func TestTokensThatNoResponseHadAreViolations(t *testing.T) {
	t.Parallel()

	listed := func(next string) *csi.ListVolumesResponse { return &csi.ListVolumesResponse{NextToken: next} }
	page := func(token string) *csi.ListVolumesRequest { return &csi.ListVolumesRequest{StartingToken: token} }

	for name, test := range map[string]struct {
		run  func(f *fixture)
		want []string
	}{
		"unknown, ten minutes after the start": {run: func(f *fixture) { f.now = f.now.Add(10 * time.Minute); f.call(page("x"), listed("")) }},
		"unknown, later": {
			run:  func(f *fixture) { f.now = f.now.Add(10*time.Minute + 1); f.call(page("x"), listed("")) },
			want: []string{"token-unknown 1: starting_token was never returned"},
		},
		"refused, ten minutes after the start": {
			run:  func(f *fixture) { f.now = f.now.Add(10 * time.Minute); f.fail(page("x"), codes.Aborted) },
			want: []string{"token-unknown 1: starting_token was never returned"},
		},
		"refused, later": {
			run:  func(f *fixture) { f.now = f.now.Add(time.Hour); f.fail(page("x"), codes.Aborted) },
			want: []string{"token-unknown 1: starting_token was never returned"},
		},
		"unknown, and another failure": {run: func(f *fixture) { f.fail(page("x"), codes.Internal) }},
		"none, and a refusal":          {run: func(f *fixture) { f.fail(page(""), codes.Aborted) }},
		"issued, and a refusal":        {run: func(f *fixture) { f.call(page(""), listed("t")); f.fail(page("t"), codes.Aborted) }},
		"no list, and a refusal":       {run: func(f *fixture) { f.fail(&csi.DeleteVolumeRequest{VolumeId: "v"}, codes.Aborted) }},
		"issued twice, used twice": {
			run: func(f *fixture) {
				f.call(page(""), listed("t"))
				f.call(page(""), listed("t"))
				f.call(page("t"), listed(""))
				f.call(page("t"), listed(""))
			},
		},
		"issued once, used twice at once": {
			run: func(f *fixture) {
				f.call(page(""), listed("t"))

				end := f.begin(f.t.Context(), page("t"))
				f.call(page("t"), listed(""))
				end(listed(""), nil)
			},
			want: []string{"token-reused 1: starting_token was used before"},
		},
		"of another call": {
			run: func(f *fixture) {
				f.call(&csi.ListSnapshotsRequest{}, &csi.ListSnapshotsResponse{NextToken: "t"})
				f.now = f.now.Add(time.Hour)
				f.call(page("t"), listed(""))
			},
			want: []string{"token-unknown 1: starting_token was never returned"},
		},
		"more than are remembered": {
			run: func(f *fixture) {
				for number := range 10_001 {
					f.begin(f.t.Context(), page(""))(listed(strconv.Itoa(number)), nil)
					f.now = f.now.Add(time.Second)
				}

				f.begin(f.t.Context(), page("1"))(listed(""), nil)
				f.begin(f.t.Context(), page("10000"))(listed(""), nil)
				f.begin(f.t.Context(), page("10000"))(listed(""), nil)
			},
			want: []string{"token-reused 1: starting_token was used before"},
		},
	} {
		f := newFixture(t, strict.Observe)
		test.run(f)

		got := []string{}
		for _, each := range f.List() {
			got = append(got, each.ID+" "+strconv.FormatUint(each.Count, 10)+": "+each.Detail)
		}

		require.Equal(t, append([]string{}, test.want...), got, "want: the violations of a token: %s", name)
	}
}

// TestARecordIsOfItsCalls compares all of a record after two violations of one object.
func TestARecordIsOfItsCalls(t *testing.T) {
	t.Parallel()

	f := newFixture(t, strict.Observe)
	first := f.now
	request := &csi.DeleteVolumeRequest{VolumeId: "v", Secrets: map[string]string{"": "x"}}
	f.begin(t.Context(), request)(nil, errFailed)

	f.now = f.now.Add(time.Minute)
	f.begin(t.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: "v", Secrets: map[string]string{"": "x"}})(nil, errFailed)

	var kind strict.Kind

	for _, each := range strict.Kinds() {
		if each.ID == "secret-key-malformed" {
			kind = each
		}
	}

	require.Equal(t, []strict.Violation{{
		Kind: kind, Object: "v", Count: 2, First: first, Last: first.Add(time.Minute), Method: csi.Controller_ControllerExpandVolume_FullMethodName,
		Call: 2, Detail: "a key of secrets has another character, or none",
	}}, f.List(), "want: the record has the first time and the last call")
}

func TestObjectsOfRecordsAreShortened(t *testing.T) {
	t.Parallel()

	for given, want := range map[string]string{
		strings.Repeat("v", 256):       strings.Repeat("v", 256),
		strings.Repeat("v", 257):       strings.Repeat("v", 256-len("…")) + "…",
		strings.Repeat("ä", 128) + "v": strings.Repeat("ä", 126) + "…",
	} {
		f := newFixture(t, strict.Observe)
		f.begin(t.Context(), &csi.DeleteVolumeRequest{VolumeId: given, Secrets: map[string]string{"": "x"}})(nil, errFailed)
		require.Equal(t, want, f.List()[0].Object, "want: an object of %d bytes", len(given))
	}
}

// TestTheOldestRecordIsReplaced, by its last call.
func TestTheOldestRecordIsReplaced(t *testing.T) {
	t.Parallel()

	f := newFixture(t, strict.Observe)
	violate := func(id string) {
		f.begin(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id, Secrets: map[string]string{"": "x"}})(nil, errFailed)
		f.now = f.now.Add(time.Second)
	}

	for number := range 1000 {
		violate(strconv.Itoa(number))
	}

	violate("0")
	violate("new")

	objects := map[string]bool{}
	for _, each := range f.List() {
		objects[each.Object] = true
	}

	require.Equal(t, []bool{true, false, true, true}, []bool{objects["0"], objects["1"], objects["2"], objects["new"]},
		"want: the record whose last violation is the oldest is gone")
	require.Equal(t, 1000, len(objects), "want: one record is replaced") //nolint:testifylint // Len prints all of them
}

// TestRecordsOfOneTimeHaveAnOrder: by their kinds, and then by their objects.
func TestRecordsOfOneTimeHaveAnOrder(t *testing.T) {
	t.Parallel()

	f := newFixture(t, strict.Observe, "LIST_VOLUMES")

	for _, id := range []string{"b", "c", "a"} {
		f.begin(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id, Secrets: map[string]string{"": "x"}})(nil, errFailed)
	}

	f.begin(t.Context(), &csi.ListVolumesRequest{})(nil, errFailed)

	objects := []string{}
	for _, each := range f.List() {
		objects = append(objects, each.Object)
	}

	require.Equal(t, []string{"ListVolumes", "a", "b", "c"}, objects, "want: the order of records of one time")
}

// TestRefusedCallsAreRetriesToo: what is refused has failed.
func TestRefusedCallsAreRetriesToo(t *testing.T) {
	t.Parallel()

	f := newFixture(t, strict.Refuse)

	for range 4 {
		_, err := f.Begin(t.Context(), 1, csi.Controller_DeleteVolume_FullMethodName,
			&csi.DeleteVolumeRequest{VolumeId: "v", Secrets: map[string]string{"": "x"}})
		rpccode.Require(t, err, codes.FailedPrecondition, "a request with a violation")
	}

	require.Equal(t, []string{"retry-without-backoff", "secret-key-malformed"}, f.ids(), "want: the fourth refused call is a retry without backoff")
}

func TestStreamsThatAreNotAdvertised(t *testing.T) {
	t.Parallel()

	for mode, code := range map[strict.Mode]codes.Code{strict.Observe: codes.OK, strict.Refuse: codes.FailedPrecondition} {
		f := newFixture(t, mode, "SNAPSHOT_METADATA_SERVICE")
		rpccode.Require(t, f.BeginStream(t.Context(), 7, csi.SnapshotMetadata_GetMetadataDelta_FullMethodName), code, "a stream with --strict=%s", mode)

		record := f.List()[0]
		require.Equal(t, []any{"call-not-advertised", "GetMetadataDelta", uint64(7), mode == strict.Refuse},
			[]any{record.ID, record.Object, record.Call, record.Refused}, "want: the stream is recorded with --strict=%s", mode)

		f = newFixture(t, mode)
		require.NoError(t, f.BeginStream(t.Context(), 7, csi.SnapshotMetadata_GetMetadataDelta_FullMethodName), "an advertised stream")
		require.Empty(t, f.List(), "want: an advertised stream is no violation")
	}
}

func TestOtherMessagesAreNotChecked(t *testing.T) {
	t.Parallel()

	f := newFixture(t, strict.Refuse)
	end, err := f.Begin(t.Context(), 1, csi.Controller_DeleteVolume_FullMethodName, "text")
	require.NoError(t, err, "a request that is no message")
	end("text", nil)
	require.Empty(t, f.List(), "want: a request that is no message is not checked")
}

func TestTheMetricIsRegisteredOnce(t *testing.T) {
	t.Parallel()

	registry := prometheus.NewRegistry()
	_, err := strict.New(strict.Config{}, registry)
	require.NoError(t, err)

	_, err = strict.New(strict.Config{}, registry)
	errtext.Require(t, err, "register the metric of violations", "want: a second monitor in one registry is refused")

	families, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, families[0].GetMetric(), len(strict.Kinds()), "want: the metric has each kind from the start")
}

// TestARequestNamesItsVolume, also one that breaks a rule before its response.
func TestARequestNamesItsVolume(t *testing.T) {
	f := newFixture(t, strict.Observe)
	f.create()
	f.attach()
	f.stage()
	f.detach()

	found := f.List()
	require.Len(t, found, 1, "want: the end of an attachment that is in use breaks a rule")
	require.Equal(t, "data", found[0].Name)
}

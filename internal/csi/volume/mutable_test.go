package volume_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// all are all mutable parameters, each in its canonical form.
func all() map[string]string {
	return map[string]string{
		"readAheadKiB": "512", "ioScheduler": "mq-deadline", "readBytesPerSecond": "1048576",
		"writeBytesPerSecond": "0", "readIOPS": "100", "writeIOPS": "4294967295", "checkPeriod": "24h0m0s",
	}
}

func parse(t *testing.T, given map[string]string) volume.Mutable {
	t.Helper()

	parsed, err := volume.ParseMutable(given)
	require.NoError(t, err)

	return parsed
}

func TestMutableParametersAreParsed(t *testing.T) {
	t.Parallel()

	parsed := parse(t, all())
	require.Equal(t, volume.Mutable(all()), parsed)

	for key, want := range map[string]int64{
		volume.KeyReadAheadKiB: 512, volume.KeyReadBytesPerSecond: 1 << 20, volume.KeyWriteBytesPerSecond: 0,
		volume.KeyReadIOPS: 100, volume.KeyWriteIOPS: 1<<32 - 1,
	} {
		require.Equal(t, want, parsed.Number(key), key)
	}

	require.Equal(t, all(), parsed.Parameters())
	require.True(t, parse(t, nil).IsZero(), "want: parameters that are not set are zero")
	require.True(t, parse(t, map[string]string{"readIOPS": "007"}).Equal(parse(t, map[string]string{"readIOPS": "7"})), "want: numbers are compared by value")
}

// TestAnySchedulerNameIsAccepted: the kernel says which of them it has.
func TestAnySchedulerNameIsAccepted(t *testing.T) {
	t.Parallel()

	for _, name := range []string{"a", "az", "z09", "-_", "fifteen-letters"} {
		require.Equal(t, name, parse(t, map[string]string{"ioScheduler": name})[volume.KeyIOScheduler], "the scheduler of a volume")
	}

	for _, name := range []string{"`", "{", "/", ":", "A", "sixteen-letters-"} {
		_, err := volume.ParseMutable(map[string]string{"ioScheduler": name})
		require.Error(t, err, "want: %q is no name of a scheduler", name)
	}
}

func TestInvalidMutableParametersAreRefused(t *testing.T) {
	t.Parallel()

	for key, values := range map[string][]string{
		"readAheadKiB":        {"", "-4", "5", "1048580", "4k", "4.0", " 4", "+4"},
		"ioScheduler":         {"", "mq deadline", "../none", "None", "none\n", "sixteen-letters-", "é"},
		"readBytesPerSecond":  {"", "-1", "4095", "1Mi", "9223372036854775808", "max"},
		"writeBytesPerSecond": {"", "-1", "1", "1e6"},
		"readIOPS":            {"", "-1", "4294967296", "1.5"},
		"writeIOPS":           {"", "-1", "99999999999999999999"},
		"checkPeriod":         {"", "-1h", "24", "a day"},
	} {
		for _, value := range values {
			given := all()
			given[key] = value

			_, err := volume.ParseMutable(given)
			require.ErrorIs(t, err, volume.ErrParameter, "%s=%q", key, value)
			errtext.Require(t, err, key)
		}
	}

	for _, key := range []string{"", "readiops", "pool", "XXX_FakeKey", "csi.storage.k8s.io/fstype"} {
		_, err := volume.ParseMutable(map[string]string{key: "1"})
		require.ErrorIs(t, err, volume.ErrParameter)

		for known := range all() {
			errtext.Require(t, err, known)
		}
	}
}

func TestLaterMutableParametersReplaceEarlierOnes(t *testing.T) {
	t.Parallel()

	for key, value := range all() {
		one := parse(t, map[string]string{key: value})
		require.Equal(t, map[string]string{key: value}, volume.Mutable{}.With(one).Parameters())
		require.Equal(t, all(), parse(t, all()).With(one).Parameters())

		without := all()
		delete(without, key)
		require.Equal(t, all(), parse(t, without).With(one).Parameters())
	}

	limited := parse(t, all()).With(parse(t, map[string]string{"readIOPS": "0", "checkPeriod": "0", "ioScheduler": "none"}))
	want := all()
	maps.Copy(want, map[string]string{"readIOPS": "0", "checkPeriod": "0s", "ioScheduler": "none"})
	require.Equal(t, want, limited.Parameters())
}

func TestOnlyDifferentParametersConflict(t *testing.T) {
	t.Parallel()

	ours := parse(t, all())
	require.Empty(t, ours.ConflictingKeys(ours), "want: equal parameters do not conflict")
	require.Empty(t, ours.ConflictingKeys(volume.Mutable{}), "want: no parameters do not conflict")
	require.Empty(t, volume.Mutable{}.ConflictingKeys(ours), "want: no parameters do not conflict")
	require.Equal(t, []string{"ioScheduler", "writeIOPS"}, ours.ConflictingKeys(parse(t, map[string]string{
		"writeIOPS": "7", "ioScheduler": "bfq", "readIOPS": "100",
	})))
}

func TestMutableNeedsDevice(t *testing.T) {
	t.Parallel()

	require.Equal(t, "ioScheduler", parse(t, all()).NeedsDevice())
	require.Empty(t, parse(t, map[string]string{"checkPeriod": "1h", "readIOPS": "0"}).NeedsDevice(), "want: the parameters need no device")
	require.Equal(t, "readIOPS", parse(t, map[string]string{"checkPeriod": "1h", "readIOPS": "1"}).NeedsDevice())
	require.Equal(t, "readAheadKiB", parse(t, map[string]string{"readAheadKiB": "0"}).NeedsDevice())
}

func TestMutableParametersAreReadAsTheyWereWritten(t *testing.T) {
	t.Parallel()

	type record struct {
		Mutable volume.Mutable `json:"mutable,omitzero"`
	}

	text, err := json.Marshal(record{parse(t, all())})
	require.NoError(t, err)

	var read record

	require.NoError(t, json.Unmarshal(text, &read))
	require.True(t, read.Mutable.Equal(parse(t, all())), "want: what was read is what was written")

	text, err = json.Marshal(record{})
	require.NoError(t, err)
	require.JSONEq(t, `{}`, string(text))

	for _, damaged := range []string{`{"mutable":{"readIOPS":"-1"}}`, `{"mutable":{"nothing":"1"}}`, `{"mutable":{"readIOPS":1}}`} {
		require.Error(t, json.NewDecoder(strings.NewReader(damaged)).Decode(&read), "Decode of %s", damaged)
	}
}

// TestOpaqueParametersAreKept: with those that the driver knows, in records and in merged changes.
func TestOpaqueParametersAreKept(t *testing.T) {
	t.Parallel()

	first := parse(t, map[string]string{"opaque/color": "red", "opaque/": "", "checkPeriod": "1h0m0s"})
	require.Equal(t, volume.Mutable{"opaque/color": "red", "opaque/": "", "checkPeriod": "1h0m0s"}, first)

	second := parse(t, map[string]string{"opaque/color": "blue", "opaque/size": "1"})
	require.Equal(t, []string{"opaque/color"}, first.ConflictingKeys(second))
	require.False(t, second.IsZero(), "want: an opaque parameter counts")
	require.Empty(t, second.NeedsDevice(), "want: it needs no device")

	both := first.With(second)
	require.Equal(t, map[string]string{"opaque/color": "blue", "opaque/": "", "opaque/size": "1", "checkPeriod": "1h0m0s"}, both.Parameters())
	require.Equal(t, "red", first["opaque/color"], "want: With changes neither")
	require.Equal(t, "blue", second["opaque/color"], "want: With changes neither")
	require.True(t, first.With(volume.Mutable{}).Equal(first), "want: what is not named stays")

	text, err := json.Marshal(both)
	require.NoError(t, err)

	var read volume.Mutable

	require.NoError(t, json.Unmarshal(text, &read))
	require.True(t, read.Equal(both), "want: what was read is what was written")
}

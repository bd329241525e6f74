package kata_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/guest"
)

const (
	sandbox = "1f0c9d"
	// soon ends what would never end; nothing that ends by itself takes as long.
	soon = 300 * time.Millisecond
)

func taken() kata.Entry {
	return kata.Entry{Assignment: plain(), Sandbox: sandbox}
}

// newShim starts a shim, and returns it with a way to it.
func newShim(t *testing.T) (*guest.Shim, *kata.Guest) {
	t.Helper()

	root := t.TempDir()
	shim := guest.StartShim(t, root, sandbox)

	return shim, kata.NewGuest(kata.GuestConfig{ShimRoots: []string{root}, Timeout: time.Minute})
}

func TestGuestRequestsHaveKatasFormat(t *testing.T) {
	t.Parallel()

	shim, asked := newShim(t)

	usage, err := asked.Stats(t.Context(), taken())
	require.NoError(t, err)
	require.Equal(t, guest.Usage(), usage)
	require.NoError(t, asked.Resize(t.Context(), taken(), 3<<30))
	require.Equal(t, []guest.Request{
		{Method: "GET", URI: "/direct-volume/stats?path=%2Fdev%2Floop7"},
		{Method: "POST", URI: "/direct-volume/resize", Body: `{"VolumePath":"/dev/loop7","Size":3221225472}`},
	}, shim.Requests())
}

func TestOlderGuestGetsTheOlderRequests(t *testing.T) {
	t.Parallel()

	shim, asked := newShim(t)
	shim.Switch(guest.Legacy)

	usage, err := asked.Stats(t.Context(), taken())
	require.NoError(t, err)
	require.Equal(t, guest.Usage(), usage)
	require.NoError(t, asked.Resize(t.Context(), taken(), 3<<30))
	require.Equal(t, []guest.Request{
		{Method: "GET", URI: "/direct-volume/stats?path=%2Fdev%2Floop7"},
		{Method: "PUT", URI: "/fs-stats", Body: `{"block-device":"/dev/loop7"}`},
		{Method: "POST", URI: "/direct-volume/resize", Body: `{"VolumePath":"/dev/loop7","Size":3221225472}`},
		{Method: "PUT", URI: "/fs-resize", Body: `{"block-device":"/dev/loop7","volume-size":"3221225472"}`},
	}, shim.Requests())
}

// Kata unescapes the query, and its value once more.
func TestDeviceNameSurvivesUnescaping(t *testing.T) {
	t.Parallel()

	shim, asked := newShim(t)
	entry := taken()
	entry.Device = "/host dev/by-id/a+b&c=d?e#f"

	_, err := asked.Stats(t.Context(), entry)
	require.NoError(t, err)

	uri, err := url.ParseRequestURI(shim.Requests()[0].URI)
	require.NoError(t, err)

	again, err := url.PathUnescape(uri.Query().Get("path"))
	require.NoError(t, err)
	require.Equal(t, entry.Device, again)
	require.Equal(t, url.Values{"path": {entry.Device}}, uri.Query())
}

func TestShimFailuresAreDistinguished(t *testing.T) {
	t.Parallel()

	for mode, want := range map[guest.Mode]struct{ stats, resize error }{
		guest.Unimplemented: {nil, kata.ErrUnimplemented},
		guest.NotFound:      {kata.ErrNoAnswer, kata.ErrUnimplemented},
		guest.Failing:       {kata.ErrNoAnswer, kata.ErrNoAnswer},
		guest.Dropping:      {kata.ErrNoAnswer, kata.ErrNoAnswer},
		guest.Garbage:       {kata.ErrNoAnswer, kata.ErrNoAnswer},
		guest.Babbling:      {kata.ErrNoAnswer, kata.ErrNoAnswer},
		guest.Impossible:    {kata.ErrNoAnswer, kata.ErrNoAnswer},
	} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()

			shim, asked := newShim(t)
			shim.Switch(mode)

			_, err := asked.Stats(t.Context(), taken())
			failedAs(t, err, want.stats)
			failedAs(t, asked.Resize(t.Context(), taken(), 1<<30), want.resize)

			// And it was no reason to give the guest up.
			shim.Switch(guest.OK)
			require.NoError(t, asked.Resize(t.Context(), taken(), 1<<30))
		})
	}
}

// failedAs wants this one of the sentinel errors, and a message that says of what.
func failedAs(t *testing.T, err, want error) {
	t.Helper()

	for _, kind := range []error{kata.ErrNoAnswer, kata.ErrUnimplemented, kata.ErrNoSandbox} {
		if kind == want { //nolint:errorlint // the very one
			require.ErrorIs(t, err, kind)
		} else {
			require.NotErrorIs(t, err, kind)
		}
	}

	if want == nil {
		require.NoError(t, err)
	} else {
		errtext.Require(t, err, target)
		require.Less(t, len(err.Error()), 1000, "want: the error is short however long the answer is")
		require.NotContains(t, err.Error(), "\n")
	}
}

func TestUnimplementedIsRecognizedInEachSpelling(t *testing.T) {
	t.Parallel()

	shim, asked := newShim(t)

	for said, want := range map[string]struct {
		status int
		err    error
	}{
		"ttrpc: code: UNIMPLEMENTED, not there":        {http.StatusInternalServerError, kata.ErrUnimplemented},
		"rpc error: code = Unimplemented desc = sorry": {http.StatusOK, kata.ErrUnimplemented},
		"rpc error: code = NotFound desc = /grpc.AgentService/ResizeVolume is not supported": {
			http.StatusInternalServerError, kata.ErrUnimplemented,
		},
		"sorry":                     {http.StatusNotImplemented, kata.ErrUnimplemented},
		"use another verb":          {http.StatusMethodNotAllowed, kata.ErrUnimplemented},
		"rpc error: code = Aborted": {http.StatusInternalServerError, kata.ErrNoAnswer},
		"elsewhere":                 {http.StatusFound, kata.ErrNoAnswer},
		"{}\n":                      {http.StatusOK, nil},
		"":                          {http.StatusOK, nil},
	} {
		shim.Say(want.status, said)
		failedAs(t, asked.Resize(t.Context(), taken(), 1<<30), want.err)
	}
}

// A message quotes 256 bytes of an answer. An answer of 64 KiB is taken, and a longer one is not.
func TestAnswersHaveALimit(t *testing.T) {
	t.Parallel()

	const (
		quoted = 256
		most   = 64 << 10
	)

	shim, asked := newShim(t)
	program, byProgram := newProgram(t)

	for excess, end := range map[int]string{-1: `"`, 0: `"`, 1: `"…`} {
		text := strings.Repeat("x", quoted+excess)
		shim.Say(http.StatusOK, " "+text+"\n")
		require.EqualError(t, asked.Resize(t.Context(), taken(), 1<<30), fmt.Sprintf(
			`ask sandbox %q to resize %q to 1073741824 bytes: %s: it said "%s%s`,
			sandbox, target, kata.ErrNoAnswer, text[:min(len(text), quoted)], end))

		usage := `{"usage":[{"total":20,"unit":1}]}`
		usage += strings.Repeat(" ", most+excess-len(usage))
		shim.Say(http.StatusOK, usage)

		put(t, filepath.Join(filepath.Dir(program.Path), "usage"), usage[:len(usage)-1]) // the program adds a line's end

		for name, guest := range map[string]*kata.Guest{"shim": asked, "kata-runtime": byProgram} {
			got, err := guest.Stats(t.Context(), taken())
			if excess > 0 {
				failedAs(t, err, kata.ErrNoAnswer)
				errtext.Require(t, err, "it says more than 65536 bytes", name)
			} else {
				require.NoError(t, err, name)
				require.Equal(t, mount.Usage{Bytes: mount.Amount{Total: 20}}, got, name)
			}
		}
	}
}

func TestImplausibleUsageIsRefused(t *testing.T) {
	t.Parallel()

	shim, asked := newShim(t)
	bytes := mount.Usage{Bytes: mount.Amount{Total: 20, Used: 5, Available: 15}}

	for said, want := range map[string]*mount.Usage{
		`{"usage":[{"available":15,"total":20,"used":5,"unit":1}]}`:                                                    &bytes,
		`{"usage":[{"available":15,"total":20,"used":5,"unit":1},{"unit":2}]}`:                                         &bytes,
		`{"usage":[{"total":9,"unit":7},{"available":15,"total":20,"used":5,"unit":1},{"total":1,"used":2}],"more":1}`: &bytes,
		`{"usage":[{"total":20,"unit":1}]}`:                                                                            {Bytes: mount.Amount{Total: 20}},
		`{"usage":[{"total":9223372036854775807,"used":9223372036854775807,"unit":1},{"total":2,"available":2,"unit":2}]}`: {
			Bytes: mount.Amount{Total: 1<<63 - 1, Used: 1<<63 - 1}, Inodes: mount.Amount{Total: 2, Available: 2},
		},

		``:                                  nil,
		`null`:                              nil,
		`{}`:                                nil,
		`[]`:                                nil,
		`{"usage":{}}`:                      nil,
		`{"usage":[]}`:                      nil,
		`{"usage":[null]}`:                  nil,
		`{"usage":[{"unit":1}]}`:            nil,
		`{"usage":[{"total":20}]}`:          nil,
		`{"usage":[{"total":20,"unit":2}]}`: nil,
		`{"usage":[{"total":20,"used":21,"unit":1}]}`:                               nil,
		`{"usage":[{"total":20,"available":21,"unit":1}]}`:                          nil,
		`{"usage":[{"total":-20,"unit":1}]}`:                                        nil,
		`{"usage":[{"total":20,"used":-1,"unit":1}]}`:                               nil,
		`{"usage":[{"total":20.5,"unit":1}]}`:                                       nil,
		`{"usage":[{"total":"20","unit":1}]}`:                                       nil,
		`{"usage":[{"total":9223372036854775808,"unit":1}]}`:                        nil,
		`{"usage":[{"total":18446744073709551616,"unit":1}]}`:                       nil,
		`{"usage":[{"total":20,"unit":1},{"total":20,"unit":1}]}`:                   nil,
		`{"usage":[{"total":20,"unit":1},{"total":1,"used":2,"unit":2}]}`:           nil,
		`{"usage":[{"total":20,"unit":1},{"used":2,"unit":2}]}`:                     nil,
		`{"usage":[{"total":20,"unit":1},{"unit":2},{"total":1,"unit":2}]}`:         nil,
		`{"usage":[{"total":20,"unit":1}]} trailing`:                                nil,
		`{"usage":[{"total":20,"unit":1}]`:                                          nil,
		`Usage: [VolumeUsage { available: 1 }] Volume Condition: (as Kata in Rust)`: nil,
	} {
		shim.Say(http.StatusOK, said)

		usage, err := asked.Stats(t.Context(), taken())
		if want == nil {
			failedAs(t, err, kata.ErrNoAnswer)
			require.Zero(t, usage, "want: a refused answer has no usage")
		} else {
			require.NoError(t, err, said)
			require.Equal(t, *want, usage)
		}
	}
}

func TestSilentGuestTimesOut(t *testing.T) {
	t.Parallel()

	for _, mode := range []guest.Mode{guest.Hanging, guest.Stalling, guest.Switching} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()

			root := t.TempDir()
			shim := guest.StartShim(t, root, sandbox)
			shim.Switch(mode)

			asked := kata.NewGuest(kata.GuestConfig{ShimRoots: []string{root}, Timeout: soon})

			_, err := asked.Stats(t.Context(), taken())
			failedAs(t, err, kata.ErrNoAnswer)
			require.NotErrorIs(t, err, context.DeadlineExceeded, "it isn't the caller's")
			errtext.Require(t, err, "within 300ms")
			failedAs(t, asked.Resize(t.Context(), taken(), 1<<30), kata.ErrNoAnswer)
		})
	}
}

func TestCancelledCallReturns(t *testing.T) {
	t.Parallel()

	shim, asked := newShim(t)
	shim.Switch(guest.Hanging)

	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)

	go func() {
		_, err := asked.Stats(ctx, taken())
		failed <- err
	}()

	require.Eventually(t, func() bool { return len(shim.Requests()) == 1 }, time.Minute, time.Millisecond, "want: the shim is asked")
	cancel()

	err := await.Receive(t, failed, "Stats to return after its context ended")
	failedAs(t, err, kata.ErrNoAnswer)
	require.ErrorIs(t, err, context.Canceled)
}

func TestWithoutASandboxNoShimIsAsked(t *testing.T) {
	t.Parallel()

	shim, asked := newShim(t)
	program := guest.NewKataRuntime(t)
	byProgram := kata.NewGuest(kata.GuestConfig{KataRuntime: program.Path})
	entry := taken()
	entry.Sandbox = ""

	for _, asked := range []*kata.Guest{asked, byProgram} {
		_, err := asked.Stats(t.Context(), entry)
		failedAs(t, err, kata.ErrNoSandbox)
		failedAs(t, asked.Resize(t.Context(), entry, 1<<30), kata.ErrNoSandbox)
	}

	require.Empty(t, shim.Requests(), "want: no shim is asked without a sandbox")
	require.Empty(t, program.Calls(t), "want: kata-runtime is not started without a sandbox")
}

func TestTheShimIsFoundInTheFirstRootThatHasIt(t *testing.T) {
	t.Parallel()

	var roots []string

	for range 4 {
		roots = append(roots, t.TempDir())
	}

	roots[0] = filepath.Join(roots[0], "missing")
	// As a shim leaves it that isn't Kata's, or not yet ready.
	put(t, filepath.Join(roots[1], sandbox, "other.sock"), "")

	third, fourth := guest.StartShim(t, roots[2], sandbox), guest.StartShim(t, roots[3], sandbox)
	asked := kata.NewGuest(kata.GuestConfig{ShimRoots: roots, Timeout: time.Minute})

	_, err := asked.Stats(t.Context(), taken())
	require.NoError(t, err)
	require.Len(t, third.Requests(), 1, "want: the first root that has the shim is asked")
	require.Empty(t, fourth.Requests(), "want: the later root is not asked")

	third.Kill()

	_, err = asked.Stats(t.Context(), taken())
	failedAs(t, err, kata.ErrNoAnswer)
	errtext.Require(t, err, "connection refused")
	require.Empty(t, fourth.Requests(), "a socket that refuses is the sandbox's still")

	third.Stop()

	_, err = asked.Stats(t.Context(), taken())
	require.NoError(t, err)

	fourth.Stop()

	_, err = asked.Stats(t.Context(), taken())
	failedAs(t, err, kata.ErrNoAnswer)

	for _, root := range roots {
		errtext.Require(t, err, root, "where it was looked for")
	}
}

func TestSandboxNameStaysInItsRoot(t *testing.T) {
	t.Parallel()

	top := t.TempDir()
	root := filepath.Join(top, "root")
	shim := guest.StartShim(t, top, sandbox)
	asked := kata.NewGuest(kata.GuestConfig{ShimRoots: []string{root}, Timeout: time.Minute})

	require.NoError(t, os.Mkdir(root, 0o700))
	require.NoError(t, os.Symlink("../"+sandbox, filepath.Join(root, "link")))
	require.NoError(t, os.Mkdir(filepath.Join(root, "directory"), 0o700))
	require.NoError(t, os.Symlink("../../"+sandbox+"/shim-monitor.sock", filepath.Join(root, "directory", "shim-monitor.sock")))
	put(t, filepath.Join(root, "file", "shim-monitor.sock"), "")

	for _, name := range []string{
		"../" + sandbox, "directory/../../" + sandbox, "..", ".", "/", filepath.Join(top, sandbox), "link", "directory", "file", "a\x00b",
	} {
		entry := taken()
		entry.Sandbox = name

		_, err := asked.Stats(t.Context(), entry)
		failedAs(t, err, kata.ErrNoAnswer)
	}

	require.Empty(t, shim.Requests(), "want: no shim outside of the root is asked")
}

func TestGuestRequestsIgnoreProxies(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("ALL_PROXY", "http://127.0.0.1:1")
	t.Setenv("http_proxy", "http://127.0.0.1:1")

	_, asked := newShim(t)

	_, err := asked.Stats(t.Context(), taken())
	require.NoError(t, err)
}

func TestALongShimRootIsReached(t *testing.T) {
	t.Parallel()

	root := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	guest.StartShim(t, root, sandbox)

	asked := kata.NewGuest(kata.GuestConfig{ShimRoots: []string{root}, Timeout: time.Minute})

	_, err := asked.Stats(t.Context(), taken())
	require.NoError(t, err)
}

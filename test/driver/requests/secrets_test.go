package requests_test

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/lab/calls"
	"github.com/touchstone-csi/touchstone/internal/lab/faults"
	"github.com/touchstone-csi/touchstone/internal/lab/strict"
	"github.com/touchstone-csi/touchstone/internal/operation/progress"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/logs"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/served"
)

const (
	// secretMark is in each secret that a test sends, flagMark in each mount flag. The record of a
	// volume in use has its mount flags, with which it is mounted again.
	secretMark = "hunter2"
	flagMark   = "flag-of-" + secretMark
)

// watched is a driver with everything that logs, records, traces or shows calls.
type watched struct {
	*fixture

	log     logs.Buffer
	errors  string
	callLog string
	http    string
	spans   func() string
}

func newWatched(t *testing.T) *watched {
	t.Helper()

	w := &watched{callLog: filepath.Join(t.TempDir(), "calls.jsonl"), http: served.Address()}

	var endpoint string

	endpoint, w.spans = served.Collect(t)
	w.fixture = newFixture(t, func(c *driver.Config) {
		c.Log = slog.New(slog.NewJSONHandler(&w.log, &slog.HandlerOptions{Level: slog.Level(math.MinInt)}))
		c.CallLog, c.Strict, c.EnableFaults, c.HTTPEndpoint, c.OTLPEndpoint = w.callLog, strict.Observe, true, w.http, endpoint
	})

	_, err := faults.Client{Connection: w.Conn()}.Add(t.Context(), "{name: all, act: {delay: {before: 1ms}}}")
	require.NoError(t, err)

	return w
}

// secretive returns the requests in which a field is, or may be, a credential: the fields that the spec
// marks, mount flags, and the tokens of pods in a volume_context.
func (f *fixture) secretive(t *testing.T) []derived {
	t.Helper()

	return f.each(t, func(r request, field conformance.Field) []derived {
		mark := fmt.Sprintf("%s-%s-%s", secretMark, r.name(), field.Name())

		switch {
		case field.IsSecret():
			return []derived{r.derive(field, "with a secret", func(message proto.Message) { field.SetText(message, "user", mark) })}
		case field.Name() == "mount_flags":
			return []derived{
				r.derive(field, "ignored by mount", func(message proto.Message) { field.SetText(message, "", "x-token="+flagMark) }),
				r.derive(field, "for the filesystem", func(message proto.Message) { field.SetText(message, "", "password="+flagMark) }),
			}
		case field.Name() == "volume_context":
			return []derived{r.derive(field, "with tokens", func(message proto.Message) {
				field.In(message).Mutable(field.FieldDescriptor).Map().
					Set(protoreflect.ValueOfString(rpc.KeyTokens).MapKey(), protoreflect.ValueOfString(mark))
			})}
		default:
			return nil
		}
	})
}

// useWithSecrets publishes an inline volume, one with a filesystem, and one that is assigned to a guest,
// with credentials in all calls.
func (w *watched) useWithSecrets(t *testing.T) {
	t.Helper()

	inline := map[string]string{rpc.KeyTokens: secretMark, "size": "16Mi"}
	require.NoError(t, w.Publish(t.Context(), harness.InlineClaim(t, w.Driver, inline)))

	for name, request := range map[string]*csi.CreateVolumeRequest{
		"mounted": harness.Formatted("ext4", "x-token="+flagMark), "direct": harness.DirectRequest("ext4", "x-token="+flagMark),
	} {
		request.Name, request.Secrets = name, map[string]string{"user": secretMark}
		claim := harness.NewVolume(t, w.Driver, request)
		claim.VolumeContext = maps.Clone(claim.VolumeContext)

		require.NoError(t, w.Attach(t.Context(), claim))
		t.Cleanup(func() { harness.TakeDown(t, w.Driver, claim) })

		if claim.VolumeContext == nil {
			claim.VolumeContext = map[string]string{}
		}

		claim.VolumeContext[rpc.KeyTokens] = secretMark
		require.NoError(t, w.Stage(t.Context(), claim))
		require.NoError(t, w.Publish(t.Context(), claim))

		claim.Capability = csiclient.MountCapability(harness.Writer, "ext4", "password="+flagMark)
		w.errors += fmt.Sprintln(w.Stage(t.Context(), claim), w.Publish(t.Context(), claim))
	}
}

// TestSecretsAreHidden: each secret of each request is sent, and nothing has it that logs, records,
// traces or shows calls.
func TestSecretsAreHidden(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	w := newWatched(t)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+secretMark)
	sent := map[string]bool{}

	requests := w.secretive(t)
	// Flags of CreateVolume make another volume of that name than the complete request.
	slices.SortStableFunc(requests, func(a, b derived) int { return strings.Compare(b.what, a.what) })

	for _, each := range requests {
		require.Contains(t, fmt.Sprint(each.message), secretMark)

		err := each.call(t, ctx, w.fixture)
		w.errors += fmt.Sprintf("%s: %v\n", each.name(), err)
		sent[each.name()] = true

		if each.field.IsSecret() {
			require.NoError(t, err, "%s fails because of its secrets", each.name())
		}
	}

	w.useWithSecrets(t)

	ofCalls, others := w.ofCalls(t), w.others(t)
	stored := filesIn(t, w.Config.StateDir, w.Pool(), w.Config.Node.Direct.Root)

	// The end exports all spans, and the start recovers what is in use.
	w.Restart(t)

	ofCalls["log"], ofCalls["call log"], ofCalls["spans"] = w.log.String(), filesIn(t, w.callLog), w.spans()
	others["errors"], others["state"] = w.errors, strings.ReplaceAll(stored, flagMark, "")

	for where, text := range ofCalls {
		requireNoSecret(t, where, text)

		for rpc := range sent {
			if !strings.Contains(text, rpc) {
				t.Errorf("%s is not in the %s: the test shows nothing about its secrets there", rpc, where)
			}
		}
	}

	for where, text := range others {
		require.NotEmpty(t, text, where)
		requireNoSecret(t, where, text)
	}
}

// requireNoSecret fails the test with what is around a secret in the text of what shows calls.
func requireNoSecret(t *testing.T, where, text string) {
	t.Helper()

	const around = 300

	if at := strings.Index(text, secretMark); at >= 0 {
		require.Fail(t, "a secret is in the "+where, "…%s…", text[max(0, at-around):min(len(text), at+around)])
	}
}

// ofCalls returns what a client gets that is by call or RPC.
func (w *watched) ofCalls(t *testing.T) map[string]string {
	t.Helper()

	client := calls.NewClient(w.Conn())

	return map[string]string{
		"calls":   asJSON(t)(client.List(t.Context(), calls.Filter{})),
		"counts":  asJSON(t)(client.Counts(t.Context())),
		"hits":    asJSON(t)(faults.Client{Connection: w.Conn()}.Log(t.Context())),
		"metrics": w.get(t, "/metrics"),
	}
}

// others returns what else a client gets.
func (w *watched) others(t *testing.T) map[string]string {
	t.Helper()

	return map[string]string{
		"violations":     asJSON(t)(strict.List(t.Context(), w.Conn())),
		"rules":          asJSON(t)(faults.Client{Connection: w.Conn()}.List(t.Context())),
		"names":          asJSON(t)(names.List(t.Context(), w.Conn(), names.Volume)),
		"operations":     asJSON(t)(progress.NewClient(w.Conn()).List(t.Context())),
		"report":         asJSON(t)(health.NewClient(w.Conn()).Report(t.Context())),
		"page":           w.get(t, "/"),
		"data of a page": w.get(t, "/health.json"),
		"readiness":      w.get(t, "/readyz"),
	}
}

func asJSON(t *testing.T) func(answer any, err error) string {
	t.Helper()

	return func(answer any, err error) string {
		require.NoError(t, err)

		text, err := json.Marshal(answer)
		require.NoError(t, err)

		return string(text)
	}
}

func (w *watched) get(t *testing.T, path string) string {
	t.Helper()

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+w.http+path, http.NoBody)
	require.NoError(t, err)

	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)

	defer response.Body.Close()

	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)

	return string(text)
}

// filesIn returns the content of all files that are no images.
func filesIn(t *testing.T, roots ...string) string {
	t.Helper()

	var text strings.Builder

	for _, root := range roots {
		require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() || filepath.Ext(path) == ".img" {
				return err
			}

			content, err := os.ReadFile(path)
			text.Write(content)

			return err
		}))
	}

	return text.String()
}

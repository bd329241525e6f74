package recording_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/lab/calls"
	"github.com/touchstone-csi/touchstone/internal/lab/strict"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func recorded(c *driver.Config) { c.CallLog = driver.CallLogRing }

func clientOf(d *harness.Driver) *calls.Client { return calls.NewClient(d.Conn()) }

func list(t *testing.T, d *harness.Driver, filter calls.Filter) []*calls.Call {
	t.Helper()

	listed, err := clientOf(d).List(t.Context(), filter)
	require.NoError(t, err)

	return listed
}

// TestALifecycleIsRecorded has each call once, in order, with what was sent and answered.
func TestALifecycleIsRecorded(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, recorded)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "data", Parameters: harness.DirectoryBacked()})
	harness.BringUp(t, d, claim)
	harness.TakeDown(t, d, claim)
	harness.DeleteVolume(t, d, claim.VolumeID)

	var rpcs []string

	last := uint64(0)

	for _, call := range list(t, d, calls.Filter{Object: "data"}) {
		rpcs = append(rpcs, call.RPC())
		require.Equal(t, "OK", call.Code)
		require.Greater(t, call.Number, last, "want: the numbers of the calls increase")
		require.NotEmpty(t, call.Metadata["user-agent"], "want: the record has the user agent")
		last = call.Number
	}

	require.Equal(t, []string{
		"CreateVolume", "ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume",
		"NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume", "DeleteVolume",
	}, rpcs)

	published := list(t, d, calls.Filter{Method: "NodePublishVolume"})[0]

	var request struct {
		TargetPath     string            `json:"target_path"`
		PublishContext map[string]string `json:"publish_context"`
	}

	require.NoError(t, json.Unmarshal(published.Request, &request))
	require.Equal(t, claim.TargetPath, request.TargetPath)
	require.Equal(t, claim.PublishContext, request.PublishContext)

	attached := list(t, d, calls.Filter{Method: "ControllerPublishVolume"})[0]
	require.Contains(t, string(attached.Response), "publish_context")

	counts, err := clientOf(d).Counts(t.Context())
	require.NoError(t, err)
	require.Contains(t, counts, calls.Count{Method: "NodeStageVolume", Code: "OK", Count: 1})
}

// TestRefusedCallsAreRecorded, whichever part of the driver refuses them, with the message that the
// CO gets.
func TestRefusedCallsAreRecorded(t *testing.T) {
	t.Parallel()

	d := harness.Start(t, recorded, harness.WithoutCapabilities("LIST_VOLUMES"), func(c *driver.Config) { c.Strict = strict.Refuse })

	_, unserved := d.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	_, tooLong := d.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: strings.Repeat("v", 200)})
	_, missing := d.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: harness.UnknownVolume})

	for method, err := range map[string]error{"ListVolumes": unserved, "NodeUnstageVolume": tooLong, "ControllerGetVolume": missing} {
		call := list(t, d, calls.Filter{Method: method})[0]
		require.Equal(t, rpc.CodeName(status.Code(err)), call.Code)
		require.NotEqual(t, "OK", call.Code, "want: the call is refused")
		errtext.Require(t, err, call.Message)
		require.NotEmpty(t, call.Message, "want: the record has the message of the error")
		require.Empty(t, call.Response, "want: a refused call has no response")
	}
}

// TestDeadlineAndMetadataAreRecorded: those of the caller, without credentials.
func TestDeadlineAndMetadataAreRecorded(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, recorded)
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer hunter2", "x-request-id", "7"), time.Minute)

	defer cancel()

	_, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: "data", Parameters: harness.DirectoryBacked(), Secrets: map[string]string{"password": "hunter2"},
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "")},
	})
	require.NoError(t, err)

	inline := harness.InlineClaim(t, d, map[string]string{"size": "16Mi", "csi.storage.k8s.io/serviceAccount.tokens": "hunter2"})
	require.NoError(t, d.Publish(t.Context(), inline))

	made := list(t, d, calls.Filter{Method: "CreateVolume"})[0]
	require.InDelta(t, 60, made.Timeout, 10, "want: the record has the timeout of the call")
	require.Equal(t, []string{"7"}, made.Metadata["x-request-id"])

	text, err := json.Marshal(list(t, d, calls.Filter{}))
	require.NoError(t, err)
	require.NotContains(t, string(text), "hunter2")
	require.Contains(t, string(text), "password")
	require.Contains(t, string(text), "serviceAccount.tokens")
}

// TestSecretsAreRecordedOnRequest (--call-log-secrets).
func TestSecretsAreRecordedOnRequest(t *testing.T) {
	t.Parallel()

	d := harness.Start(t, recorded, func(c *driver.Config) { c.CallLogSecrets = true })
	_, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: harness.UnknownVolume, Secrets: map[string]string{"a": "hunter2"}})
	require.NoError(t, err)
	require.Contains(t, string(list(t, d, calls.Filter{Method: "DeleteVolume"})[0].Request), "hunter2")
}

// TestAStreamIsOneCall with the messages that the caller got.
func TestAStreamIsOneCall(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, recorded)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
	})
	harness.BringUp(t, d, claim)
	harness.WriteBlock(t, claim)
	harness.TakeDown(t, d, claim)

	snapshot := harness.TakeSnapshot(t, d, claim.VolumeID, "s")

	stream, err := d.GetMetadataAllocated(t.Context(), &csi.GetMetadataAllocatedRequest{SnapshotId: snapshot})
	require.NoError(t, err)

	got := 0

	for ; ; got++ {
		if _, err = stream.Recv(); errors.Is(err, io.EOF) {
			break
		}

		require.NoError(t, err)
	}

	result, err := clientOf(d).Wait(t.Context(), calls.WaitRequest{Filter: calls.Filter{Method: "GetMetadataAllocated"}})
	require.NoError(t, err)
	require.Len(t, result.Calls[0].Messages, got, "want: the record has all messages of the stream")
	require.Positive(t, got, "want: the stream has messages")
	require.Contains(t, string(result.Calls[0].Messages[0]), "block_metadata")
	require.Equal(t, []string{snapshot}, result.Calls[0].Objects)
	require.Equal(t, "OK", result.Calls[0].Code)
}

// syncBuffer is a buffer for a log that is written while it is read.
type syncBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (b *syncBuffer) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.text.Write(text)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.text.String()
}

// TestMetricsMatchTheLog, and the violations.
func TestMetricsMatchTheLog(t *testing.T) {
	t.Parallel()

	log := &syncBuffer{}
	d := harness.Start(t, recorded, func(c *driver.Config) {
		c.Strict = strict.Observe
		c.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: driver.LevelReads}))
	})

	_, err := d.ListVolumes(t.Context(), &csi.ListVolumesRequest{StartingToken: "made-up"})
	harness.RequireCode(t, err, codes.Aborted)

	call := list(t, d, calls.Filter{Method: "ListVolumes"})[0]
	number := " call=" + strconv.FormatUint(call.Number, 10) + " method=/csi.v1.Controller/ListVolumes"
	require.Equal(t, 2, strings.Count(log.String(), number), "the line of the call and that of the violation: %s", log.String())

	violations, err := strict.List(t.Context(), d.Conn())
	require.NoError(t, err)
	require.Equal(t, call.Number, violations[0].Call, "want: the violation has the number of its call")
}

// TestAListIsRecordedWhole: with what many volumes share.
func TestAListIsRecordedWhole(t *testing.T) {
	t.Parallel()

	d := harness.Start(t, recorded)
	harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "a", Parameters: harness.DirectoryBacked()})

	listed, err := d.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	require.NoError(t, err)
	require.Equal(t, "directory", listed.GetEntries()[0].GetVolume().GetVolumeContext()["backing"], "want: the context of the volume")

	response := string(list(t, d, calls.Filter{Method: "ListVolumes"})[0].Response)
	require.Contains(t, response, `"backing":"directory"`, "want: the record has the context")
	require.Contains(t, response, `"accessible_topology"`, "want: the record has the topology")
}

// TestFileHasALineForEachCall, also of several runs.
func TestFileHasALineForEachCall(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "calls.jsonl")
	d := harness.Start(t, func(c *driver.Config) { c.CallLog = path })
	harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "first", Parameters: harness.DirectoryBacked()})
	d.Restart(t)
	harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "second", Parameters: harness.DirectoryBacked()})
	require.Len(t, list(t, d, calls.Filter{Method: "CreateVolume"}), 1, "in memory are those of this run")
	d.Stop()

	text, err := os.ReadFile(path)
	require.NoError(t, err)

	var names []string

	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		var call calls.Call

		require.NoError(t, json.Unmarshal(lines.Bytes(), &call))

		if call.RPC() == "CreateVolume" {
			names = append(names, call.Objects[0])
		}
	}

	require.Equal(t, []string{"first", "second"}, names)

	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "want: the file is for its owner only")
}

// TestAFullDiskFailsNoCall writes the log to /dev/full.
func TestAFullDiskFailsNoCall(t *testing.T) {
	t.Parallel()

	d := harness.Start(t, func(c *driver.Config) { c.CallLog = "/dev/full" })
	harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "data", Parameters: harness.DirectoryBacked()})
	require.Len(t, list(t, d, calls.Filter{Object: "data"}), 1, "want: the call is recorded though the disk is full")
}

// TestAWaitMissesNoCall begins each wait before, while or after the call, as a shell test would.
func TestAWaitMissesNoCall(t *testing.T) {
	t.Parallel()

	d := harness.Start(t, recorded)
	waited := make(chan error, 1)

	for i := range 50 {
		id := harness.UnknownVolume + "-" + strconv.Itoa(i)

		go func() {
			result, err := clientOf(d).Wait(t.Context(), calls.WaitRequest{Filter: calls.Filter{Method: "NodeUnpublishVolume", Object: id}})
			if err == nil && !result.Reached {
				err = context.DeadlineExceeded
			}

			waited <- err
		}()

		_, err := d.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{
			VolumeId: id, TargetPath: filepath.Join(d.Config.KubeletDir, "pods", id),
		})
		require.NoError(t, err)
		require.NoError(t, await.Receive(t, waited, "the wait for the call"))
	}
}

// TestFollowersDoNotDelayTheEnd of a driver.
func TestFollowersDoNotDelayTheEnd(t *testing.T) {
	t.Parallel()

	d := harness.Start(t, recorded)
	first, ended := make(chan struct{}), make(chan error, 1)

	go func() {
		begun := false
		ended <- clientOf(d).Follow(t.Context(), calls.FollowRequest{}, func(calls.Followed) error {
			if !begun {
				close(first)
			}

			begun = true

			return nil
		})
	}()

	_, err := d.Probe(t.Context(), &csi.ProbeRequest{})
	require.NoError(t, err)
	await.Return(t, func() { <-first }, "the first call")
	d.Stop()
	harness.RequireCode(t, await.Receive(t, ended, "the end of Follow"), codes.Unavailable)
}

func TestWithoutTheFlagThereIsNoService(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	_, err := clientOf(d).List(t.Context(), calls.Filter{})
	harness.RequireCode(t, err, codes.Unimplemented)
}

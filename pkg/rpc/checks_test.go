package rpc_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// TestChecksOfFields: which values a field of a request may have.
func TestChecksOfFields(t *testing.T) {
	t.Parallel()

	for id, want := range map[string]codes.Code{"": codes.InvalidArgument, "a/b": codes.InvalidArgument, "..": codes.InvalidArgument, "vol-1": codes.OK} {
		rpccode.Require(t, rpc.Status(rpc.CheckID("snapshot_id", id)), want, "id %q", id)
		rpccode.Require(t, rpc.Status(rpc.CheckVolumeID(id)), want, "id %q", id)
	}

	require.ErrorContains(t, rpc.CheckID("snapshot_id", ""), "snapshot_id")
	require.ErrorContains(t, rpc.CheckVolumeID("a/b"), "volume_id")

	for path, want := range map[string]codes.Code{"": codes.OK, "/": codes.OK, "/a": codes.OK, "a": codes.InvalidArgument, "./a": codes.InvalidArgument} {
		rpccode.Require(t, rpc.Status(rpc.CheckAbsolute("target_path", path)), want, "path %q", path)
	}

	rpccode.Require(t, rpc.Status(rpc.CheckCapacityRange(nil)), codes.OK)

	for sizes, want := range map[[2]int64]codes.Code{
		{0, 0}: codes.InvalidArgument, {-1, 0}: codes.InvalidArgument, {0, -1}: codes.InvalidArgument, {-1, 1}: codes.InvalidArgument,
		{1, -1}: codes.InvalidArgument, {1, 0}: codes.OK, {0, 1}: codes.OK, {1, 1}: codes.OK, {1, 2}: codes.OK, {2, 1}: codes.InvalidArgument,
	} {
		err := rpc.CheckCapacityRange(&csi.CapacityRange{RequiredBytes: sizes[0], LimitBytes: sizes[1]})
		rpccode.Require(t, rpc.Status(err), want, "required %d, limit %d", sizes[0], sizes[1])
	}
}

// TestTruncateAtEachLength: a text that fits stays, and any other one has the limit at most and is UTF-8.
// A path keeps its last 32 bytes at least.
func TestTruncateAtEachLength(t *testing.T) {
	t.Parallel()

	const limit = 64

	require.Equal(t, strings.Repeat("x", limit), rpc.Truncate(strings.Repeat("x", limit), limit))
	require.Equal(t, strings.Repeat("x", limit-len(rpc.Ellipsis))+rpc.Ellipsis, rpc.Truncate(strings.Repeat("x", limit+1), limit))
	require.Equal(t, "a?b", rpc.Truncate("a\xffb", limit))

	end := strings.Repeat("e", 31)

	for length := range 3 * limit {
		for _, text := range []string{
			strings.Repeat("ü", length), strings.Repeat("x", length) + "ü", "gone: /" + strings.Repeat("d", length) + "/" + end,
			"gone: /" + strings.Repeat("ü", length) + "/" + end, "/" + strings.Repeat("d", length) + " /" + strings.Repeat("d", length),
		} {
			got := rpc.Truncate(text, limit)
			require.True(t, utf8.ValidString(got), "want: %q is UTF-8", got)
			require.LessOrEqual(t, len(got), limit, "want: %q is within the limit", got)
			require.Equal(t, len(text) <= limit, got == text, "want: only a text that is too long is changed, not %q", got)

			if strings.HasPrefix(text, "gone: /") {
				require.True(t, strings.HasPrefix(got, "gone: "), "want: %q begins as the text", got)
				require.True(t, strings.HasSuffix(got, "/"+end), "want: %q has the end of the path", got)
				require.GreaterOrEqual(t, len(got), min(len(text), limit-len(rpc.Ellipsis)), "want: no more is removed than needed of %q", got)
			}
		}
	}
}

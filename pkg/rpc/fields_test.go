package rpc_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/rpc"
)

func TestTruncateKeepsTheEndsOfPaths(t *testing.T) {
	t.Parallel()

	const (
		target = "/var/lib/kubelet/pods/5f0c2f0e-8f6b-4a53-9d2b-1f4f54a0b7c1/volumes/kubernetes.io~csi/pvc-0b1a9d6e-7c3f-4f58-8d0f-2f9b6c1d3e4a/mount"
		stage  = "/var/lib/kubelet/plugins/kubernetes.io/csi/touchstone/6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b/globalmount"
		pod    = "1f4f54a0b7c1/volumes"
		volume = "/pvc-0b1a9d6e-7c3f-4f58-8d0f-2f9b6c1d3e4a/mount"
	)

	for name, test := range map[string]struct {
		text string
		want []string
	}{
		"a short text":    {"not mounted any more: /staging", []string{"not mounted any more: /staging"}},
		"a target":        {"not mounted any more; restart its pod: " + target, []string{"not mounted any more; restart its pod: …", pod, volume}},
		"a staging path":  {"not mounted any more; stage it again: " + stage, []string{"6b86b273ff34", "/globalmount"}},
		"a long cause":    {"not unmounted: process 4194303 (touchstone) in mount namespace 4026532999 keeps it in use: " + target, []string{"…", "/mount"}},
		"in the middle":   {"its mount " + target + " was made read-only", []string{"its mount …", volume + " was made read-only"}},
		"two paths":       {"gone: " + target + "; gone: " + stage, []string{"gone: …", volume, "/globalmount"}},
		"no path":         {strings.Repeat("x", 200), []string{"xxx…"}},
		"runes in a path": {"gone: /" + strings.Repeat("ü", 100) + "/end", []string{"gone: …ü", "/end"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got := rpc.Truncate(test.text, rpc.MaxStringBytes)
			require.LessOrEqual(t, len(got), rpc.MaxStringBytes, "want: the text is within the limit")
			require.True(t, utf8.ValidString(got), "want: %q is UTF-8", got)

			for _, part := range test.want {
				require.Contains(t, got, part)
			}
		})
	}
}

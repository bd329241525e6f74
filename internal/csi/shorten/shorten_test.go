package shorten_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/shorten"
)

func TestTextKeepsTheEndsOfPaths(t *testing.T) {
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
		"a short text":   {"not mounted any more: /staging", []string{"not mounted any more: /staging"}},
		"a target":       {"not mounted any more; restart its pod: " + target, []string{"not mounted any more; restart its pod: …", pod, volume}},
		"a staging path": {"not mounted any more; stage it again: " + stage, []string{"6b86b273ff34", "/globalmount"}},
		"a long cause":   {"not unmounted: process 4194303 (touchstone) in mount namespace 4026532999 keeps it in use: " + target, []string{"…", "/mount"}},
		"in the middle":  {"its mount " + target + " was made read-only", []string{"its mount …", volume + " was made read-only"}},
		"two paths":      {"gone: " + target + "; gone: " + stage, []string{"gone: …", volume, "/globalmount"}},
		// Its first three bytes would be replaced by an ellipsis, which has three, too.
		"a short path":    {"it is /" + strings.Repeat("p", 34) + " " + strings.Repeat("x", 100), []string{"it is /ppp"}},
		"no path":         {strings.Repeat("x", 200), []string{"xxx…"}},
		"runes in a path": {"gone: /" + strings.Repeat("ü", 100) + "/end", []string{"gone: …ü", "/end"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got := shorten.Text(test.text, shorten.MaxBytes)
			require.LessOrEqual(t, len(got), shorten.MaxBytes, "want: the text is within the limit")
			require.True(t, utf8.ValidString(got), "want: %q is UTF-8", got)

			for _, part := range test.want {
				require.Contains(t, got, part)
			}
		})
	}
}

// TestOnlyLongTextsAreShortened: a text that fits stays, and any other one has the limit at most and is UTF-8.
// A path keeps its last 32 bytes at least.
func TestOnlyLongTextsAreShortened(t *testing.T) {
	t.Parallel()

	const limit = 64

	require.Equal(t, strings.Repeat("x", limit), shorten.Text(strings.Repeat("x", limit), limit))
	require.Equal(t, strings.Repeat("x", limit-len(shorten.Ellipsis))+shorten.Ellipsis, shorten.Text(strings.Repeat("x", limit+1), limit))
	require.Equal(t, "a?b", shorten.Text("a\xffb", limit))
	require.Equal(t, shorten.Ellipsis, shorten.End(strings.Repeat("\x80", limit+1), limit), "want: what is no UTF-8 is left out")

	end := strings.Repeat("e", 31)

	for length := range 3 * limit {
		for _, text := range []string{
			strings.Repeat("ü", length), strings.Repeat("x", length) + "ü", "gone: /" + strings.Repeat("d", length) + "/" + end,
			"gone: /" + strings.Repeat("ü", length) + "/" + end, "/" + strings.Repeat("d", length) + " /" + strings.Repeat("d", length),
		} {
			got := shorten.Text(text, limit)
			require.True(t, utf8.ValidString(got), "want: %q is UTF-8", got)
			require.LessOrEqual(t, len(got), limit, "want: %q is within the limit", got)
			require.Equal(t, len(text) <= limit, got == text, "want: only a text that is too long is changed, not %q", got)

			if strings.HasPrefix(text, "gone: /") {
				require.True(t, strings.HasPrefix(got, "gone: "), "want: %q begins as the text", got)
				require.True(t, strings.HasSuffix(got, "/"+end), "want: %q has the end of the path", got)
				require.GreaterOrEqual(t, len(got), min(len(text), limit-len(shorten.Ellipsis)), "want: no more is removed than needed of %q", got)
			}
		}
	}
}

package kata

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestDefaultsOfAGuest are for what the configuration leaves out.
func TestDefaultsOfAGuest(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		config GuestConfig
		want   *Guest
	}{
		"nothing": {GuestConfig{}, &Guest{route: &shim{roots: []string{"/run/vc/sbs", "/run/kata"}}, timeout: 3 * time.Second}},
		"roots":   {GuestConfig{ShimRoots: []string{"/a"}}, &Guest{route: &shim{roots: []string{"/a"}}, timeout: 3 * time.Second}},
		"timeout": {
			GuestConfig{ShimRoots: []string{"/a", "/b"}, Timeout: time.Second},
			&Guest{route: &shim{roots: []string{"/a", "/b"}}, timeout: time.Second},
		},
		"kata-runtime": {
			GuestConfig{ShimRoots: []string{"/a"}, KataRuntime: "/usr/bin/kata-runtime"},
			&Guest{route: &kataRuntime{path: "/usr/bin/kata-runtime"}, timeout: 3 * time.Second},
		},
	} {
		require.Equal(t, test.want, NewGuest(test.config), "the way to a guest by %s", name)
	}
}

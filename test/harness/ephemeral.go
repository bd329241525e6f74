package harness

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
)

// InlineClaim is a pod's inline volume as the kubelet asks for it.
func InlineClaim(t *testing.T, d *Driver, attributes map[string]string) *csiclient.Publication {
	t.Helper()

	digest := make([]byte, 32)
	_, _ = rand.Read(digest)

	id := "csi-" + hex.EncodeToString(digest)
	attached := map[string]string{
		"csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.name": "a-pod",
		"csi.storage.k8s.io/serviceAccount.name": "default",
	}
	maps.Copy(attached, attributes)

	claim := &csiclient.Publication{
		VolumeID: id, VolumeContext: attached, Capability: csiclient.MountCapability(Writer, ""),
		TargetPath: filepath.Join(d.Config.KubeletDir, "pods", id, "mount"),
	}
	t.Cleanup(func() { require.NoError(t, d.Unpublish(context.WithoutCancel(t.Context()), claim)) })

	return claim
}

// SmallInline are the attributes of an inline volume of 16 MiB.
func SmallInline() map[string]string { return map[string]string{"size": "16Mi"} }

// EphemeralObjects are the names in the pool's directory for ephemeral volumes.
func EphemeralObjects(t *testing.T, d *Driver) []string {
	t.Helper()

	var found []string

	require.NoError(t, filepath.WalkDir(filepath.Join(d.Pool(), "ephemeral"), func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed since its directory was read
		}

		if err == nil && strings.Count(strings.TrimPrefix(path, d.Pool()), "/") == 3 {
			found = append(found, entry.Name())
		}

		return err
	}))

	return found
}

// RequireEphemeralGone requires that nothing of an ephemeral volume is left in the
// pool, which has no other. CheckNothingIsLeft finds mounts and devices.
func RequireEphemeralGone(t *testing.T, d *Driver, claim *csiclient.Publication) {
	t.Helper()
	require.NoDirExists(t, claim.TargetPath)
	// A start removes in the background.
	require.Eventually(t, func() bool { return len(EphemeralObjects(t, d)) == 0 }, time.Minute, 10*time.Millisecond,
		"waited for the volume to be gone from the pool")
}

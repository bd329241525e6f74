package doctor_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/doctor"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// otherUser is the id of a user without files and privileges.
const otherUser = 65534

// TestUnprivilegedUserGetsAReport: the user may not enter the driver's directories.
func TestUnprivilegedUserGetsAReport(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	c := machine(t)
	require.NoError(t, os.Mkdir(c.DirectVolumeRoot, 0o700))

	closed := map[string]bool{}

	for _, found := range asOtherUser(t, c).Findings {
		if strings.HasSuffix(found.Seen, "permission denied") && found.Verdict != doctor.Skipped {
			require.Contains(t, found.Cure, "the user that the driver runs as", found.Check)

			closed[found.Check] = true
		}

		if found.Check == "privileges" {
			require.Equal(t, doctor.Problem, found.Verdict)
			require.Contains(t, found.Seen, "user 65534")
		}
	}

	require.Equal(t, map[string]bool{
		"pool": true, "state": true, "kubelet": true, "direct-volumes": true, "socket": true, "registration": true,
	}, closed)
}

// TestSocketOfAnotherUserIsServed: one that the user sees, but may not connect to.
func TestSocketOfAnotherUserIsServed(t *testing.T) {
	t.Parallel()

	// Not t.TempDir, whose parents are closed to others.
	dir, err := os.MkdirTemp("/tmp", "touchstone-doctor-") //nolint:usetesting // see above
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o711))

	path := filepath.Join(dir, "csi.sock")
	(&stub{name: "csi.touchstone.dev", ready: true}).serve(t, path)
	require.NoError(t, os.Chmod(path, 0), "want: closed also to the user of this test, unless that is root")

	c := machine(t)
	c.Endpoint, c.Only = "unix://"+path, []string{"socket"}

	report := doctor.Examine(t.Context(), c)
	if namespace.Rooted() {
		report = asOtherUser(t, c)
	}

	require.Len(t, report.Findings, 1, "want: the socket is checked alone")
	finds(t, report.Findings[0], doctor.Problem, path, "permission denied")
	require.Contains(t, report.Findings[0].Cure, "sudo")
}

// asOtherUser returns the report of a process of a user without privileges.
func asOtherUser(t *testing.T, c doctor.Config) doctor.Report {
	t.Helper()

	given, err := json.Marshal(c)
	require.NoError(t, err)

	command := child.Command(t, "/proc/self/exe", examineChild)
	command.Stdin, command.Stderr = bytes.NewReader(given), os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUser, Gid: otherUser}}
	said, err := command.Output()
	require.NoError(t, err)

	var report doctor.Report

	require.NoError(t, json.Unmarshal(said, &report))

	return report
}

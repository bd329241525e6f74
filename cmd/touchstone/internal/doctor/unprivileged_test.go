package doctor_test

import (
	"bytes"
	"encoding/json"
	"os"
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

	given, err := json.Marshal(c)
	require.NoError(t, err)

	command := child.Command(t, "/proc/self/exe", examineChild)
	command.Stdin, command.Stderr = bytes.NewReader(given), os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUser, Gid: otherUser}}
	said, err := command.Output()
	require.NoError(t, err)

	var report doctor.Report

	require.NoError(t, json.Unmarshal(said, &report))

	closed := map[string]bool{}

	for _, found := range report.Findings {
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

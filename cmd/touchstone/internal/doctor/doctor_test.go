package doctor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/doctor"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func TestEveryCheckIsInTheDocumentation(t *testing.T) {
	t.Parallel()

	text, err := os.ReadFile("../../../../docs/doctor.md")
	require.NoError(t, err)

	_, list, found := strings.Cut(string(text), "\n## Checks and cures")
	require.True(t, found, "want: the page has the list of checks")

	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|").FindAllStringSubmatch(list, -1) {
		documented = append(documented, row[1])
	}

	require.Equal(t, doctor.Names(), documented)
}

func TestReportHasTheWorstVerdict(t *testing.T) {
	t.Parallel()

	report := doctor.Report{Findings: []doctor.Finding{{Verdict: doctor.OK}, {Verdict: doctor.Skipped}}}
	require.Equal(t, doctor.OK, report.Worst())

	report.Findings = append(report.Findings, doctor.Finding{Verdict: doctor.Warning})
	require.Equal(t, doctor.Warning, report.Worst())

	report.Findings = append(report.Findings, doctor.Finding{Verdict: doctor.Problem}, doctor.Finding{Verdict: doctor.Warning})
	require.Equal(t, doctor.Problem, report.Worst())
	require.Equal(t, 2, report.Count(doctor.Warning), "want: the report counts both warnings")
}

// TestHangingPoolIsReported uses a pool whose server does not respond: a process that accesses it
// cannot exit. The child is abandoned, and the caller gets its report.
func TestHangingPoolIsReported(t *testing.T) {
	namespace.NeedRoot(t)

	served := faults.Serve(t)
	c := machine(t)
	// The other pool must be checked within the limit too.
	c.Limit = 5 * time.Second
	c.Pools["hung"] = filepath.Join(served.Path, "pool")
	require.NoError(t, os.Mkdir(filepath.Join(served.Backing, "pool"), 0o700))

	served.Inject(t, faults.Fault{Hang: true})

	report, err := doctor.ExamineInChild(t.Context(), c, examineChild)
	require.NoError(t, err)

	for _, each := range report.Findings {
		if each.Object == "hung" {
			finds(t, each, doctor.Problem, "5s", "hangs")
		} else if each.Check == "pool" {
			finds(t, each, doctor.OK)
		}
	}

	require.Positive(t, served.Met(t), "want: the hanging pool is asked")
}

func TestExamineInChildIsCancelled(t *testing.T) {
	namespace.NeedRoot(t)

	served := faults.Serve(t)
	c := machine(t)
	c.Limit = time.Hour
	c.Pools["hung"] = filepath.Join(served.Path, "pool")
	require.NoError(t, os.Mkdir(filepath.Join(served.Backing, "pool"), 0o700))

	served.Inject(t, faults.Fault{Hang: true})

	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()

	_, err := doctor.ExamineInChild(ctx, c, examineChild)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	report := doctor.Examine(ctx, c)
	require.Equal(t, doctor.Skipped, report.Findings[len(report.Findings)-1].Verdict)
	served.Release(t)
}

func TestChildWithoutAReportFails(t *testing.T) {
	t.Parallel()

	// No test has this name, so the child prints no report.
	_, err := doctor.ExamineInChild(t.Context(), machine(t), "-test.run=^$", "-test.count=0", "-test.v=false", "-no-such-flag")
	require.ErrorIs(t, err, doctor.ErrChildFailed)
}

func TestServeChildRefusesInvalidInput(t *testing.T) {
	t.Parallel()
	errtext.Require(t, doctor.ServeChild(t.Context(), bytes.NewBufferString("{"), &bytes.Buffer{}), "configuration of the checks")
}

// TestAsUnprivilegedUser runs without privileges, as a user without sudo or an unprivileged pod.
func TestAsUnprivilegedUser(t *testing.T) {
	namespace.NeedRoot(t)

	// Not t.TempDir and the binary's directory: other users cannot enter their parents.
	root, err := os.MkdirTemp("/tmp", "touchstone-doctor-") //nolint:usetesting // see above
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(root)) })
	require.NoError(t, os.Chmod(root, 0o755))

	own, err := os.Executable()
	require.NoError(t, err)

	// Copied by another process: a concurrently forked child of this one would inherit the
	// copy open for writing, and exec would fail with ETXTBSY.
	binary := filepath.Join(root, "doctor.test")
	require.NoError(t, child.Command(t, "cp", own, binary).Run())
	require.NoError(t, os.Chmod(binary, 0o755))

	c := machine(t)
	c.Pools["default"], c.StateDir = filepath.Join(root, "pool"), filepath.Join(root, "state")
	require.NoError(t, os.Mkdir(c.Pools["default"], 0o755))
	require.NoError(t, os.Mkdir(c.StateDir, 0o700))

	given, err := json.Marshal(c)
	require.NoError(t, err)

	command := child.Command(t, binary, examineChild)
	command.Stdin = bytes.NewReader(given)
	command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}

	said, err := command.Output()
	require.NoError(t, err)

	var report doctor.Report
	require.NoError(t, json.Unmarshal(said, &report))

	verdicts := map[string]doctor.Finding{}
	for _, each := range report.Findings {
		verdicts[each.Check+" "+each.Object] = each
	}

	finds(t, verdicts["privileges "], doctor.Problem, "65534")
	finds(t, verdicts["mounting "], doctor.Problem)
	finds(t, verdicts["events block-errors"], doctor.Warning)
	finds(t, verdicts["pool default"], doctor.Problem, "nothing can be written")
	finds(t, verdicts["pool-attach default"], doctor.Skipped, "root")
	finds(t, verdicts["state "], doctor.Problem, "permission denied")
	finds(t, verdicts["socket "], doctor.Problem)
}

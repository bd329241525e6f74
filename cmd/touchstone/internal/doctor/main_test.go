package doctor_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/doctor"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// examineChild is the argument with which ExamineInChild starts this binary.
const examineChild = "examine"

func TestMain(m *testing.M) {
	if slices.Equal(os.Args[1:], []string{examineChild}) {
		if err := doctor.ServeChild(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}

		os.Exit(0)
	}

	faults.ServeIfAsked()

	code := namespace.Main(m)

	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left:", err)

			code = 1
		}
	}

	os.Exit(code)
}

// machine is a node without problems and without a driver, in directories of the test.
func machine(t *testing.T) doctor.Config {
	t.Helper()

	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)

	for _, name := range []string{"state", "pool", "kubelet", "cgroup"} {
		require.NoError(t, os.Mkdir(filepath.Join(root, name), 0o700))
	}

	require.NoError(t, os.WriteFile(filepath.Join(root, "cgroup", "cgroup.controllers"), []byte("cpu io\n"), 0o600))

	return doctor.Config{
		Mode: doctor.ModeAll, Endpoint: "unix://" + filepath.Join(root, "csi.sock"), DriverName: "csi.touchstone.dev",
		StateDir: filepath.Join(root, "state"), Pools: map[string]string{"default": filepath.Join(root, "pool")},
		KubeletDir: filepath.Join(root, "kubelet"), DirectVolumeRoot: filepath.Join(root, "direct"),
		CgroupRoot: filepath.Join(root, "cgroup"),
		// Long enough for a slow machine; tests of checks that hang set a shorter one.
		Limit: time.Minute,
		// Nothing changes while these tests observe.
		Recheck: time.Nanosecond,
	}
}

// look runs one check for one object.
func look(t *testing.T, c doctor.Config, check, object string) doctor.Finding {
	t.Helper()

	c.Only = []string{check}
	report := doctor.Examine(t.Context(), c)

	for _, each := range report.Findings {
		if each.Object == object {
			require.Equal(t, check, each.Check)

			return each
		}
	}

	require.Fail(t, "not checked", "%s %s: %+v", check, object, report)

	return doctor.Finding{}
}

// finds requires a verdict, that the finding contains each of the words, and that a warning
// or problem has a cure.
func finds(t *testing.T, found doctor.Finding, verdict doctor.Verdict, words ...string) {
	t.Helper()
	require.Equal(t, verdict, found.Verdict, "%+v", found)

	for _, word := range words {
		require.Contains(t, found.Seen, word)
	}

	needsCure := verdict == doctor.Problem || verdict == doctor.Warning
	require.Equal(t, needsCure, found.Cure != "", "%+v", found)
}

// mountAt mounts a filesystem until the test ends.
func mountAt(t *testing.T, source, target, fsType string, flags uintptr, data string) {
	t.Helper()
	namespace.NeedRoot(t)
	require.NoError(t, unix.Mount(source, target, fsType, flags, data))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(target, unix.MNT_DETACH)) })
}

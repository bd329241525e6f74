package staging_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// toolEnds are the ways in which a tool fails, as commands of a shell. $real runs the real one, and
// $file is the last file among its arguments.
var toolEnds = map[string]string{
	"refuses":                   "echo 'it does not work' >&2; exit 8",
	"is killed at once":         "kill -9 $$",
	"is killed when it is done": `"$real" "$@"; kill -9 $$`,
	// Only the first block, which has the superblock of an ext4 and of an xfs, is what the tool has written.
	"is killed half way": `"$real" "$@"; dd if=/dev/zero of="$file" bs=4096 seek=1 count=64 conv=notrunc; kill -9 $$`,
	"hangs":              "read word < gate; exit 8",
}

// failingTools stands before the tools of filesystems. Their runs are counted, and one of them fails.
type failingTools struct{ directory string }

func newFailingTools(t *testing.T) failingTools {
	t.Helper()

	f := failingTools{directory: t.TempDir()}
	require.NoError(t, unix.Mkfifo(filepath.Join(f.directory, "gate"), 0o600))

	path := os.Getenv("PATH") + ":/usr/sbin:/sbin"
	script := fmt.Sprintf(`#!/bin/sh
export PATH=%s
tool=${0##*/}
real=$(command -v $tool)
for each; do test -f "$each" && file=$each; done
echo "$tool $*" >> %[2]s/runs
test "$(wc -l < %[2]s/runs)" = "$(cat %[2]s/fails)" || exec "$real" "$@"
cd %[2]s
. ./how
`, path, f.directory)

	for _, tool := range []string{
		"mkfs.ext4", "e2fsck", "resize2fs", "tune2fs", "mkfs.xfs", "xfs_repair", "xfs_db", "mkfs.btrfs", "btrfs", "btrfstune",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(f.directory, tool), []byte(script), 0o700))
	}

	t.Setenv("PATH", f.directory+":"+os.Getenv("PATH"))

	return f
}

// plan has the run with the number fail; 0 is none.
func (f failingTools) plan(t *testing.T, number int, how string) {
	t.Helper()

	require.NoError(t, os.RemoveAll(filepath.Join(f.directory, "runs")))
	require.NoError(t, os.WriteFile(filepath.Join(f.directory, "fails"), fmt.Append(nil, number), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(f.directory, "how"), []byte(toolEnds[how]+"\n"), 0o600))
}

func (f failingTools) runs() []string {
	runs, _ := os.ReadFile(filepath.Join(f.directory, "runs")) // there is none before the first run

	return slices.Collect(strings.Lines(string(runs)))
}

// TestEachToolFailsOnce has each tool fail once that the life of a volume and of its copy needs: made,
// grown, copied. The call reports it and leaves no half-made filesystem that passes for a good one,
// and no damage; repeated, it succeeds.
func TestEachToolFailsOnce(t *testing.T) {
	namespace.NeedRoot(t)

	tools := newFailingTools(t)

	for fsType, needed := range map[string][]string{"ext4": {"mkfs.ext4", "resize2fs"}, "xfs": {"mkfs.xfs"}, "btrfs": {"mkfs.btrfs"}} {
		t.Run(fsType, func(t *testing.T) {
			tools.plan(t, 0, "refuses")
			runs := toolsLife{t: t, failingTools: tools, fsType: fsType}.run()
			for _, tool := range needed {
				require.Contains(t, strings.Join(runs, ""), tool+" ")
			}

			for i, run := range runs {
				tool, _, _ := strings.Cut(run, " ")

				for how := range toolEnds {
					// The others do not write in one go, or not on these filesystems.
					if !strings.HasPrefix(tool, "mkfs") && (how == "is killed half way" || fsType != "ext4" && how != "refuses") {
						continue
					}

					t.Run(fmt.Sprintf("%d %s %s", i+1, tool, how), func(t *testing.T) {
						tools.plan(t, i+1, how)
						toolsLife{t: t, failingTools: tools, fsType: fsType, number: i + 1, how: how}.run()
					})
				}
			}
		})
	}
}

// toolsLife is the life of a volume in which one run of a tool fails.
type toolsLife struct {
	failingTools

	t      *testing.T
	fsType string
	number int
	how    string
}

// run returns the runs of tools that were made.
func (l toolsLife) run() []string {
	t := l.t
	d := harness.Start(t)
	claim := harness.NewVolume(t, d, harness.Formatted(l.fsType))
	require.NoError(t, d.Attach(t.Context(), claim))

	l.stage(d, claim, true)
	require.NoError(t, d.Publish(t.Context(), claim))
	harness.WriteFile(t, filepath.Join(claim.TargetPath, "file"), "content")
	harness.TakeDown(t, d, claim)

	_, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: claim.VolumeID, CapacityRange: harness.RequiredBytes(harness.SizeFor(l.fsType) + 64*harness.MiB),
	})
	require.NoError(t, err)

	copied := harness.Formatted(l.fsType)
	copied.Name, copied.VolumeContentSource = "copy", harness.FromVolume(claim.VolumeID)
	copied.CapacityRange = harness.RequiredBytes(harness.SizeFor(l.fsType) + 64*harness.MiB)

	for _, each := range []*csiclient.Publication{claim, harness.NewVolume(t, d, copied)} {
		require.NoError(t, d.Attach(t.Context(), each))
		l.stage(d, each, false)
		require.NoError(t, d.Publish(t.Context(), each))
		harness.RequireFile(t, filepath.Join(each.TargetPath, "file"), "content")
		harness.TakeDown(t, d, each)
	}

	runs := l.runs()
	require.GreaterOrEqual(t, len(runs), l.number, "the run that should have failed was never made")
	l.plan(t, 0, "refuses")

	for _, id := range harness.ListAll(t, d) {
		harness.RequireSound(t, l.fsType, harness.ImageOf(d, id))
	}

	return runs
}

// stage stages the volume, again after a tool has failed. A blank volume stays blank then.
func (l toolsLife) stage(d *harness.Driver, claim *csiclient.Publication, blank bool) {
	t := l.t
	before := len(l.runs())
	ctx, cancel := context.WithCancel(t.Context())

	defer cancel()

	staged := make(chan error, 1)
	go func() { staged <- d.Stage(ctx, claim) }()

	if l.how == "hangs" {
		l.leave(cancel, staged, before)
	}

	err := await.Receive(t, staged, "the staging to return")
	failed := l.number > 0 && len(l.runs()) >= l.number && before < l.number

	if err == nil {
		require.False(t, failed, "the failure of the run %d of %q was not reported", l.number, l.runs())

		return
	}

	require.True(t, failed, "no tool was made to fail: %v", err)
	require.Contains(t, []codes.Code{codes.Internal, codes.Unavailable, codes.Canceled}, status.Code(err), "%v", err)

	stageAgain := func() error { return harness.Retry(t, func(ctx context.Context) error { return d.Stage(ctx, claim) }) }

	if l.how == "hangs" {
		// The call goes on without its caller, and another one joins it.
		await.WritePipe(t, filepath.Join(l.directory, "gate"), "go\n")

		if stageAgain() == nil {
			return
		}
	}

	if blank {
		requireBlank(t, d, claim)
	}

	require.NoError(t, stageAgain(), "repeated after: %v", err)
}

// leave gives the call up when its tool hangs.
func (l toolsLife) leave(cancel context.CancelFunc, staged chan error, before int) {
	for until := time.Now().Add(time.Minute); before < l.number && time.Now().Before(until); time.Sleep(time.Millisecond) {
		if len(l.runs()) == l.number {
			cancel()

			return
		}

		select {
		case err := <-staged:
			staged <- err

			return
		default:
		}
	}
}

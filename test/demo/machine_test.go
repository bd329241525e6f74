package demo_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/child"
)

// unrunBlocks are blocks with the mark machine that no test runs, by page and number, and why.
var unrunBlocks = map[string]string{
	"docs/install.md 1": "needs kind, minikube, or a service k3s",
}

// pageScript is the script beside machine/run.sh that runs the blocks of a page.
func pageScript(page string) string {
	return filepath.Join("machine", strings.ReplaceAll(strings.TrimSuffix(page, ".md"), "/", "_")+".sh")
}

// isUnrun says whether a block with the mark machine is known not to be run.
func isUnrun(page string, number int) bool {
	return unrunBlocks[fmt.Sprintf("%s %d", page, number)] != ""
}

// TestMachineBlocks runs the blocks with the mark machine as they are printed, those of each page on a machine of
// its own (machine/run.sh), by a script that prepares it and checks what they have done.
func TestMachineBlocks(t *testing.T) {
	workDir(t)
	needTools(t, "bash", "jq", "unshare", "ip", "setpriv", "mkfs.btrfs", "mkfs.xfs")

	// Names of pages have an underscore or a capital, the machine's own scripts neither.
	scripts, err := filepath.Glob("machine/*[_A-Z]*.sh")
	require.NoError(t, err)
	require.NotEmpty(t, scripts, "want: scripts of pages")

	for _, script := range scripts {
		name := strings.TrimSuffix(filepath.Base(script), ".sh")
		t.Run(name, func(t *testing.T) { runOnMachine(t, strings.ReplaceAll(name, "_", "/")+".md") })
	}
}

func runOnMachine(t *testing.T, page string) {
	t.Helper()

	dir := workDir(t)
	t.Cleanup(func() { removeMachine(t, dir) })

	text, err := os.ReadFile("../../" + page)
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "blocks"), 0o755))
	require.NoError(t, os.Symlink(binary, filepath.Join(dir, "touchstone")))

	if page == "docs/testing-your-co.md" {
		publish(t, filepath.Join("..", ".."), filepath.Join(dir, "disk", "proxy"))
	}

	number := 0

	var want []string

	for _, match := range fencedBlock.FindAllStringSubmatch(string(text), -1) {
		if match[1] == "sh machine" {
			number++
			path := filepath.Join(dir, "blocks", strconv.Itoa(number))
			require.NoError(t, os.WriteFile(path, []byte(match[2]+"\n"), 0o600))

			if !isUnrun(page, number) {
				want = append(want, strconv.Itoa(number))
			}
		}
	}

	caches, err := child.Command(t, "go", "env", "GOCACHE", "GOMODCACHE").Output()
	require.NoError(t, err)

	paths := strings.Fields(string(caches))
	// Packages and modules are built there.
	command := child.CommandWithin(t, 5*time.Minute, "unshare", "--net", "--pid", "--fork", "--kill-child", "bash", "machine/run.sh", dir, pageScript(page))
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	command.Env = append(child.BuildEnv(), "GOCACHE="+paths[0], "GOMODCACHE="+paths[1])

	output, err := command.CombinedOutput()
	require.NoError(t, err, "%s", output)

	ran, err := os.ReadFile(filepath.Join(dir, "disk", "ran"))
	require.NoError(t, err)
	require.Equal(t, want, slices.Compact(slices.Sorted(slices.Values(strings.Fields(string(ran))))), "want: all blocks of %s were run", page)
}

// removeMachine unmounts what is mounted below dir, and detaches the loop devices whose images are there. Its
// processes have ended with their namespace.
func removeMachine(t *testing.T, dir string) {
	t.Helper()

	images, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	require.NoError(t, err)

	var devices []string

	for _, image := range images {
		if text, err := os.ReadFile(image); err == nil && strings.HasPrefix(string(text), dir+"/") {
			devices = append(devices, "/dev/"+filepath.Base(filepath.Dir(filepath.Dir(image))))
		}
	}

	// A device that is busy keeps its image's filesystem busy.
	require.Eventually(t, func() bool {
		mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
		require.NoError(t, err)

		for _, mount := range slices.Backward(mounts) {
			_ = syscall.Unmount(mount.Mountpoint, 0)
		}

		for _, device := range devices {
			_ = child.Command(t, "losetup", "-d", device).Run()
		}

		return len(mounts) == 0
	}, waitLimit, waitStep, "want: the machine's mounts are gone")
	require.NoError(t, os.RemoveAll(dir))
	requireNoLoopDevices(t, dir)
}

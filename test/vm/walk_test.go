package vm_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/await"
)

const (
	// stateDir is the packages' directory for state and pool, on the disk that a reboot keeps.
	stateDir   = "/var/lib/touchstone"
	rebootLine = "reboot"
	// maxCommands is more than a volume's lifecycle may take.
	maxCommands = 20
)

// walkStep is a command of the page, in its order, and what it must say.
type walkStep struct {
	command, says string
	code          int
}

// walk is what the commands of examples/one-machine.md must say. A command begins with its text here.
var walk = []walkStep{
	{"touchstone ctl volume mount data", "data is mounted at /mnt/data, and at each start of the driver", 0},
	{"echo", "", 0},
	{rebootLine, "", 0},
	{"cat", "do not lose me", 0},
	{"touchstone ctl volume list", "/mnt/data", 0},
	{"touchstone ctl volume expand data", "2.0 GiB", 0},
	{"touchstone ctl snapshot create", "2.0 GiB", 0},
	{"rm /mnt/data/notes", "", 0},
	{"touchstone ctl snapshot restore", "2.0 GiB", 0},
	{"touchstone ctl volume mount old", "old is mounted at /mnt/old", 0},
	{"cp /mnt/old/notes", "", 0},
	{"touchstone ctl volume umount old", "old is unmounted from /mnt/old", 0},
	{"umount /mnt/data", "", 0},
	{"touchstone ctl volume health", "mount it again: /mnt/data", 1},
	{"touchstone ctl volume mount data", "data is mounted at /mnt/data again", 0},
	{"touchstone check", "clean", 0},
	{"touchstone ctl volume umount data", "no start of the driver mounts it again", 0},
	{"touchstone ctl volume delete", "deleted data", 0},
	{"touchstone ctl snapshot delete", "deleted monday", 0},
}

// TestOneMachine runs the commands of examples/one-machine.md, with the reboot of the machine: its first part
// before that, the rest afterwards.
func TestOneMachine(t *testing.T) {
	inMachine(t)

	commands := printedCommands(t)
	require.Len(t, commands, len(walk), "want: a step for each command of the page")
	require.Less(t, len(commands), maxCommands, "want: few commands for the lifecycle of a volume")

	at := 0
	for at < len(walk) && walk[at].command != rebootLine {
		at++
	}

	isFirst := setting(t, "TOUCHSTONE_VM_BOOT") == "1"
	if isFirst {
		run(t, "mkfs.ext4", "-q", setting(t, "TOUCHSTONE_VM_KEPT_DISK"))
	}

	startService(t, isFirst)

	if isFirst {
		walkThrough(t, commands[:at], walk[:at])
		require.NoError(t, os.WriteFile("/run/reboot", nil, fileMode))

		return
	}

	walkThrough(t, commands[at+1:], walk[at+1:])
	require.NoFileExists(t, "/mnt/data/notes")
	require.Empty(t, run(t, "find", "/var/lib/touchstone/pool/mounted/images", "/var/lib/touchstone/pool/mounted/snapshots", "-type", "f"),
		"want: nothing is left of the volumes")
}

// walkThrough runs commands in a shell each, and requires what they say.
func walkThrough(t *testing.T, commands []string, steps []walkStep) {
	t.Helper()

	for i, step := range steps {
		require.True(t, strings.HasPrefix(commands[i], step.command), "want: %q is a command of %q", commands[i], step.command)

		command := exec.Command("sh", "-c", commands[i])
		command.Env = environment()
		output, err := command.CombinedOutput()
		t.Logf("# %s\n%s", commands[i], output)
		require.Equal(t, step.code, command.ProcessState.ExitCode(), "want: the exit code of %s: %v", commands[i], err)
		require.Contains(t, string(output), step.says, commands[i])
	}
}

// printedCommands are the lines of the page's shell blocks.
func printedCommands(t *testing.T) []string {
	t.Helper()

	page, err := os.ReadFile(beside(t, "one-machine.md"))
	require.NoError(t, err)

	var commands []string
	for _, block := range regexp.MustCompile("(?m)^```sh own\n((?s:.*?)\n)```$").FindAllStringSubmatch(string(page), -1) {
		commands = append(commands, strings.Split(strings.TrimSpace(block[1]), "\n")...)
	}

	return commands
}

// beside is the path of a file that the payload has beside the driver.
func beside(t *testing.T, name string) string {
	t.Helper()

	return filepath.Join(filepath.Dir(setting(t, "TOUCHSTONE_BINARY")), name)
}

// startService starts the driver as the packages' service does, and returns when it is ready. After the reboot
// the volume must be mounted then.
func startService(t *testing.T, isFirst bool) {
	t.Helper()

	require.NoError(t, os.MkdirAll(stateDir, directoryMode))
	run(t, "mount", "-t", "ext4", setting(t, "TOUCHSTONE_VM_KEPT_DISK"), stateDir)
	run(t, "ip", "link", "set", "lo", "up")
	t.Setenv("PATH", filepath.Dir(setting(t, "TOUCHSTONE_BINARY"))+":"+os.Getenv("PATH"))

	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: "/run/notify", Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, systemd.Close()) })

	log, err := os.Create("/run/touchstone.log")
	require.NoError(t, err)

	defer log.Close() // The child has its own descriptor.

	service := exec.Command("touchstone", "serve", "--config", beside(t, "config.yaml"), "--node-id", nodeID)
	service.Stdout, service.Stderr = log, log
	service.Env = append(environment(), "NOTIFY_SOCKET=/run/notify")
	require.NoError(t, service.Start())

	t.Cleanup(func() {
		written, err := os.ReadFile("/run/touchstone.log")
		require.NoError(t, err)

		if t.Failed() {
			t.Logf("the driver's log:\n%s", written)
		}
	})

	notified := make(chan string, 1)
	go func() {
		datagram := make([]byte, 1<<10)
		_ = systemd.SetReadDeadline(time.Now().Add(waitLimit))
		size, _ := systemd.Read(datagram)
		notified <- string(datagram[:size])
	}()

	require.Contains(t, await.Receive(t, notified, "the driver to be ready"), "READY=1")

	if !isFirst {
		kept, err := os.ReadFile("/mnt/data/notes")
		require.NoError(t, err, "want: the volume is mounted before READY=1")
		require.Equal(t, "do not lose me\n", string(kept))
	}
}

package freeze_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// freezer hands a nodeConfig to the process that freezes.
const freezer = "TOUCHSTONE_TEST_FREEZER"

// freezeIfAsked is for the begin of TestMain: in a process that killFrozen
// starts, it freezes volumes, says so and waits to be killed.
func freezeIfAsked() {
	encoded := os.Getenv(freezer)
	if encoded == "" {
		return
	}

	var config harness.NodeConfig

	err := json.Unmarshal([]byte(encoded), &config)
	if err == nil {
		var opened *harness.Node
		if opened, err = harness.OpenNode(context.Background(), config, slog.Default()); err == nil {
			err = opened.WithFrozen(context.Background(), config.VolumeIDs, func(context.Context) error {
				_, said := os.Stdout.WriteString("frozen\n")
				_, err := io.Copy(io.Discard, os.Stdin)

				return errors.Join(said, err)
			})
		}
	}

	fmt.Fprintln(os.Stderr, "freeze:", err)
	os.Exit(1)
}

// killFrozen stops the driver, and has a process freeze its volumes and be
// killed meanwhile.
func killFrozen(t *testing.T, d *harness.Driver, volumeIDs ...string) {
	t.Helper()
	d.Stop()
	t.Cleanup(func() { d.Restart(t) })

	config := harness.NodeConfigOf(d)
	config.VolumeIDs = volumeIDs
	encoded, err := json.Marshal(config)
	require.NoError(t, err)

	command := child.Command(t, "/proc/self/exe")
	command.Env = append(os.Environ(), freezer+"="+string(encoded))
	command.Stderr = t.Output()

	hold, err := command.StdinPipe()
	require.NoError(t, err)

	defer hold.Close()

	said, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start(command))

	line, err := bufio.NewReader(said).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "frozen\n", line)
	require.NoError(t, command.Process.Kill())
	require.Error(t, command.Wait(), "the exit of a process that was killed")
}

func TestFreezeEndsAtTheNextStart(t *testing.T) {
	namespace.NeedRoot(t)

	for _, fsType := range filesystem.Names() {
		t.Run(fsType, func(t *testing.T) {
			d := harness.StartNode(t)
			claim, second := harness.StagedVolume(t, d, fsType), harness.StagedVolume(t, d, "ext4")
			killFrozen(t, d, claim.VolumeID, second.VolumeID)
			harness.RequireFrozen(t, claim.StagingPath)
			harness.RequireFrozen(t, second.StagingPath)

			waiting := harness.StartHeldWrite(t, filepath.Join(claim.StagingPath, "file"))

			d.Restart(t)
			waiting.RequireDone(t)
			harness.RequireThawed(t, claim.StagingPath)
			harness.RequireThawed(t, second.StagingPath)
		})
	}
}

// TestFreezeEndsWithoutAMount unmounts a filesystem that was left frozen: the
// kernel keeps it, and its device.
func TestFreezeEndsWithoutAMount(t *testing.T) {
	namespace.NeedRoot(t)

	for _, fsType := range filesystem.Names() {
		t.Run(fsType, func(t *testing.T) {
			d := harness.StartNode(t)
			claim := harness.StagedVolume(t, d, fsType)
			killFrozen(t, d, claim.VolumeID)
			harness.Unmount(t, claim.StagingPath)

			d.Restart(t)
			require.NoError(t, d.Stage(t.Context(), claim))
			harness.RequireThawed(t, claim.StagingPath)
			harness.WriteFile(t, filepath.Join(claim.StagingPath, "file"), "written")
		})
	}
}

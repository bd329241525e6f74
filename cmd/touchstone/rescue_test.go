package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestDeletedImagesAreRescued: the commands that the condition and the rescue name bring the data back.
func TestDeletedImagesAreRescued(t *testing.T) {
	namespace.NeedRoot(t)

	mnt := t.TempDir()
	d := harness.Start(t, func(c *driver.Config) { c.NodeID, c.AllowPaths = "n1", []string{mnt} })
	t.Setenv("TOUCHSTONE_ENDPOINT", d.Config.Endpoint)

	must := func(line string) string {
		code, out, problems := touchstone(strings.Fields(strings.TrimPrefix(line, "touchstone "))...)
		require.Equal(t, exitGood, code, "want: %s succeeds: %s%s", line, out, problems)

		return out
	}
	refused := func(line, why string) {
		code, _, problems := touchstone(strings.Fields(line)...)
		require.Equal(t, exitNotWell, code, "want: %s is refused", line)
		require.Contains(t, problems, why, "want: the cause of the refusal")
	}

	must("ctl volume mount small " + mnt + "/small --create --size 20Mi")

	for _, how := range []string{"--fs=ext4", "--fs=xfs", "--fs=btrfs", "--block"} {
		at, saved := filepath.Join(mnt, how), filepath.Join(mnt, how+".img")
		rescue := "ctl volume rescue data " + saved
		second := at + "-2"
		must("ctl volume mount data " + at + " --create --size 300Mi --access-mode single-node-multi-writer " + how)
		must("ctl volume mount data " + second)

		file := at
		if how != "--block" {
			file = filepath.Join(at, "file")
		}

		content := strings.Repeat(how, 4<<20)
		put(t, file, content)
		refused(rescue, "its image was not deleted: "+d.Pool())

		var got struct {
			Volume struct {
				ID string `json:"volume_id"`
			} `json:"volume"`
		}

		require.NoError(t, json.Unmarshal([]byte(must("ctl volume get data -o json")), &got))
		require.NoError(t, os.Remove(filepath.Join(d.Pool(), "images", got.Volume.ID+".img")))
		harness.AwaitReason(t, d, got.Volume.ID, health.BackingFileMissing)

		_, out, _ := touchstone("ctl", "volume", "health", "data")
		require.Contains(t, out, "copy its device before it is unmounted: touchstone ctl volume rescue data FILE", "want: the remedy is a command")
		require.Contains(t, must("ctl volume umount "+at+" --dry-run"), "unless touchstone ctl volume rescue data FILE copies", "want: what an unmount loses")

		refused("ctl volume rescue data "+mnt+"/small/full", "no space left on device")
		require.NoFileExists(t, filepath.Join(mnt, "small", "full"), "want: no part of a copy is left")

		_, next, _ := strings.Cut(must(rescue), "; check that, then: ")
		refused(rescue, "file exists")

		for step := range strings.SplitSeq(strings.TrimSpace(next), " && ") {
			if words := strings.Fields(step); words[0] == "mv" {
				require.NoError(t, os.Rename(words[1], words[2]))
			} else {
				must(step)
			}
		}

		found, err := os.ReadFile(strings.Replace(file, at, second, 1))
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(string(found), content), "want: the data of before")
		harness.AwaitReason(t, d, got.Volume.ID, "")
		must("ctl volume umount " + at)
		must("ctl volume umount data")
		refused(rescue, "no loop device of this machine has its image")
		must("ctl volume delete data")
	}

	must("ctl volume umount small")
	must("ctl volume delete small")
}

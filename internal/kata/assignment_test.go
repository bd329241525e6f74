package kata_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

const (
	target = "/var/lib/kubelet/pods/1b2c/volumes/kubernetes.io~csi/pvc-7/mount"
	// entryOfTarget is what Kata looks for, by base64 -w0 | tr +/ -_ of the above.
	entryOfTarget = "L3Zhci9saWIva3ViZWxldC9wb2RzLzFiMmMvdm9sdW1lcy9rdWJlcm5ldGVzLmlvfmNzaS9wdmMtNy9tb3VudA=="
)

func plain() kata.Assignment {
	return kata.Assignment{TargetPath: target, Device: "/dev/loop7", FSType: "ext4"}
}

func full() kata.Assignment {
	return kata.Assignment{
		TargetPath: target + "//", Device: "/host/dev/loop8", FSType: "xfs", Group: "2000",
		Options: []string{
			"ro", "bind", "noatime,logbsize=256k", "rbind,nofail,_netdev,x-systemd.automount,nosuid",
			`context="system_u:object_r:container_file_t:s0:c1,c2"`, "fscontext=a", "defcontext=b,rootcontext=c", "ro",
		},
	}
}

func TestFilesHaveTheRuntimesFormat(t *testing.T) {
	t.Parallel()

	for name, assignment := range map[string]kata.Assignment{"plain": plain(), "full": full()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			plugin, err := assignment.CSIPlugin()
			require.NoError(t, err)
			require.Equal(t, golden(t, name+".csiPlugin.json"), string(plugin))

			info, err := assignment.MountInfo()
			require.NoError(t, err)
			require.Equal(t, golden(t, name+".mountInfo.json"), string(info))
		})
	}
}

func golden(t *testing.T, name string) string {
	t.Helper()

	content, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)

	return string(content)
}

func TestLastContradictingOptionStaysLast(t *testing.T) {
	t.Parallel()

	for given, want := range map[string]string{
		"ro,rw,ro":              `["rw","ro"]`,
		"rw,ro,rw":              `["ro","rw"]`,
		"noatime,noatime":       `["noatime"]`,
		"contextual,bindings=1": `["contextual","bindings=1"]`,
	} {
		assignment := plain()
		assignment.Options = []string{given}

		info, err := assignment.MountInfo()
		require.NoError(t, err)
		require.Equal(t, `{"volume-type":"directvol","device":"/dev/loop7","fstype":"ext4","options":`+want+`}`, string(info))
	}
}

func TestUnsupportedAssignmentIsRefused(t *testing.T) {
	t.Parallel()

	root := kata.NewRoot(filepath.Join(t.TempDir(), "root"))

	for name, spoil := range map[string]func(*kata.Assignment){
		"no target path":            func(a *kata.Assignment) { a.TargetPath = "" },
		"a relative target path":    func(a *kata.Assignment) { a.TargetPath = "pods/mount" },
		"a NUL in the target path":  func(a *kata.Assignment) { a.TargetPath = "/pods\x00" },
		"a target path of no text":  func(a *kata.Assignment) { a.TargetPath = "/pods/\xff" },
		"a target path of 190":      func(a *kata.Assignment) { a.TargetPath = "/" + strings.Repeat("a", 189) },
		"no device":                 func(a *kata.Assignment) { a.Device = "" },
		"a relative device":         func(a *kata.Assignment) { a.Device = "loop7" },
		"a device of no text":       func(a *kata.Assignment) { a.Device = "/dev/\xff" },
		"no filesystem":             func(a *kata.Assignment) { a.FSType = "" },
		"a filesystem with a NUL":   func(a *kata.Assignment) { a.FSType = "ext4\x00" },
		"a group by its name":       func(a *kata.Assignment) { a.Group = "users" },
		"a group below all":         func(a *kata.Assignment) { a.Group = "-1" },
		"a group above all":         func(a *kata.Assignment) { a.Group = "4294967296" },
		"an option that is no text": func(a *kata.Assignment) { a.Options = []string{"\xff"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			assignment := plain()
			spoil(&assignment)

			_, err := assignment.CSIPlugin()
			require.ErrorIs(t, err, kata.ErrInvalidAssignment)

			_, err = assignment.MountInfo()
			require.ErrorIs(t, err, kata.ErrInvalidAssignment)
			require.ErrorIs(t, root.Put(assignment), kata.ErrInvalidAssignment)
		})
	}
}

func TestTheLongestTargetPathHasAnEntry(t *testing.T) {
	t.Parallel()

	root := kata.NewRoot(filepath.Join(t.TempDir(), "root"))
	assignment := plain()
	assignment.TargetPath = "/" + strings.Repeat("a", 188)

	require.NoError(t, root.Put(assignment))

	_, found, err := root.Get(assignment.TargetPath)
	require.NoError(t, err)
	require.True(t, found, "want: the assignment is found")

	assignment.TargetPath += "a"
	errtext.Require(t, root.Put(assignment), "has 190 bytes; Kata finds none of more than 189")
	require.NoError(t, root.Remove(assignment.TargetPath), "there is nothing to remove")

	_, found, err = root.Get(assignment.TargetPath)
	require.NoError(t, err)
	require.False(t, found, "want: no assignment is found")
}

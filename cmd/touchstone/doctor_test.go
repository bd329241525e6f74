package main

import (
	"cmp"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// A flag of the doctor that has the name of a driver's flag has its meaning, too.
func TestDoctorFlagsMatchTheDriver(t *testing.T) {
	t.Parallel()

	page, err := os.ReadFile("../../docs/doctor.md")
	require.NoError(t, err)

	command, _, err := newRootCommand().Find([]string{"ctl", "doctor"})
	require.NoError(t, err)

	serve := newServeCommand().Flags()

	command.LocalNonPersistentFlags().VisitAll(func(flag *pflag.Flag) {
		if flag.Hidden || flag.Name == helpName {
			return
		}

		require.Contains(t, string(page), "`--"+flag.Name+"`")

		switch of := serve.Lookup(flag.Name); flag.Name {
		case "without-driver", "check-timeout":
			require.Nil(t, of, "want: the driver has no flag of the doctor alone")
		default:
			require.NotNil(t, of, flag.Name)
			require.Equal(t, of.DefValue, flag.DefValue, flag.Name)
			require.Equal(t, of.Value.Type(), flag.Value.Type(), flag.Name)
		}
	})
}

// In the driver's container no argument is needed.
func TestDoctorReadsTheDriversSettings(t *testing.T) {
	// The child that examines is this program once more.
	t.Setenv(asTouchstone, "1")

	dir := t.TempDir()
	file := filepath.Join(dir, "touchstone.yaml")
	pool := putDirectory(t, filepath.Join(dir, "pool"))

	put(t, file, "mode: node\npool: [mine="+pool+"]\nnode-id: n-1\nlog-format: json\nstate-dir: "+dir+"/none\n")
	t.Setenv("TOUCHSTONE_CONFIG", file)
	t.Setenv("TOUCHSTONE_MODE", "controller")
	t.Setenv("TOUCHSTONE_HEALTH_EVENTS", "false")
	t.Setenv("TOUCHSTONE_ENDPOINT", "unix://"+dir+"/csi.sock")

	code, out, problems := touchstone("ctl", "doctor", "--state-dir="+dir)
	require.Equal(t, exitNotWell, code, problems)
	require.Regexp(t, `(?m)^pool +mine +ok +`+pool, out)
	require.Regexp(t, `(?m)^state +- +ok +`+dir, out)
	require.Regexp(t, `(?m)^kernel +- +skipped +mode controller`, out)
	require.Regexp(t, `(?m)^socket +- +problem +there is no `+dir+`/csi.sock`, out)
	require.Contains(t, problems, "touchstone: not healthy: 1 of ")

	code, out, problems = touchstone("ctl", "doctor", "--state-dir="+dir, "--without-driver")
	require.Zero(t, code, out+problems)

	put(t, file, "node_id: n-1\n")

	code, out, problems = touchstone("ctl", "doctor")
	require.Equal(t, exitCannot, code, out)
	require.Contains(t, problems, `unknown key "node_id"`)
}

// The arguments of the driver's process are readable in its container.
func TestDoctorUsesTheDriversArguments(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		exe, cmdline  string
		mode, kubelet string
		pools         string
	}{
		"default command": {
			"/proc/self/exe", "touchstone\x00--mode=node\x00--pool=a=/a\x00--pool\x00b=/b\x00--kubelet-dir=/k\x00--http-endpoint=:1\x00",
			"node", "/given",
			"a=/a,b=/b",
		},
		"serve": {"/proc/self/exe", "touchstone\x00serve\x00--mode\x00controller\x00", "controller", "/given", ""},
		// As a Job of its own.
		"another command": {"/proc/self/exe", "touchstone\x00ctl\x00doctor\x00--mode=node\x00", "all", "/given", ""},
		"another program": {"/bin/sh", "sh\x00--mode=node\x00", "all", "/given", ""},
		"another version": {"/proc/self/exe", "touchstone\x00--mode=node\x00--unheard-of=1\x00", "all", "/given", ""},
		"no arguments":    {"/proc/self/exe", "touchstone\x00", "all", "/given", ""},
		"no process":      {"/nonexistent", "", "all", "/given", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			process := t.TempDir()
			require.NoError(t, os.Symlink(test.exe, filepath.Join(process, "exe")))
			put(t, filepath.Join(process, "cmdline"), test.cmdline)

			command, _, err := newRootCommand().Find([]string{"ctl", "doctor"})
			require.NoError(t, err)
			require.NoError(t, command.ParseFlags([]string{"--kubelet-dir=/given"}))

			flags := command.Flags()
			applyRunning(flags, process)
			require.Equal(t, test.mode, flags.Lookup("mode").Value.String())
			require.Equal(t, test.kubelet, flags.Lookup("kubelet-dir").Value.String())

			require.Equal(t, cmp.Or(test.pools, "default=/var/lib/touchstone/pool"), flags.Lookup("pool").Value.String())
		})
	}
}

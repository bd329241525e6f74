package hostpath_test

import (
	"flag"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/hostpath"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

func parse(t *testing.T, text string) (*hostpath.Flags, error) {
	t.Helper()

	flags := hostpath.NewFlags(io.Discard)
	err := flags.Parse(strings.Fields(text))

	return flags, err
}

// TestFlagsBecomeSettings has the flags of hostpathplugin, with one dash and two.
func TestFlagsBecomeSettings(t *testing.T) {
	t.Parallel()

	for given, want := range map[string]string{
		"": "--driver-name=hostpath.csi.k8s.io --state-dir=/csi-data-dir/hostpath.csi.k8s.io/state --endpoint=unix:///tmp/csi.sock " +
			"--pool=default=/csi-data-dir/hostpath.csi.k8s.io/pool --max-volume-size=1099511627776 --max-volumes-per-node=0 --v=0 " +
			"--disable-capability=PUBLISH_UNPUBLISH_VOLUME --disable-capability=MODIFY_VOLUME --disable-capability=SNAPSHOT_METADATA_SERVICE " +
			"--kubelet-dir=/kubelet --allow-path=/tmp",
		"-drivername a.b --statedir=/data --v=5":           "--driver-name=a.b --state-dir=/data/a.b/state --pool=default=/data/a.b/pool --v=5",
		"-endpoint=/run/csi.sock":                          "--endpoint=/run/csi.sock",
		"--endpoint=tcp://127.0.0.1:10000":                 "--tcp-endpoint=127.0.0.1:10000 --endpoint=/csi-data-dir/hostpath.csi.k8s.io/csi.sock",
		"--endpoint=tcp://:10000":                          "--tcp-endpoint=127.0.0.1:10000",
		"--maxvolumespernode=3":                            "--max-volumes-per-node=3",
		"--maxvolumespernode=3 --attach-limit 2":           "--max-volumes-per-node=2",
		"--max-volume-size=1024":                           "--max-volume-size=1024",
		"--capacity fast=1Gi -capacity=slow=2Gi":           "--pool=fast=/csi-data-dir/hostpath.csi.k8s.io/pool-fast --capacity=fast=1073741824 --capacity=slow=2147483648",
		"--enable-topology=false":                          "--disable-capability=VOLUME_ACCESSIBILITY_CONSTRAINTS",
		"--enable-list-snapshots=false":                    "--disable-capability=LIST_SNAPSHOTS",
		"--node-expand-required=false":                     "--disable-capability=EXPAND_VOLUME",
		"--enable-volume-expansion=false":                  "--disable-capability=EXPAND_VOLUME",
		"--disable-controller-expansion":                   "--disable-capability=controller:EXPAND_VOLUME",
		"--disable-node-expansion":                         "--disable-capability=node:EXPAND_VOLUME",
		"-logtostderr -alsologtostderr=false -vmodule=a=2": "--v=0",
		"--check-volume-lifecycle":                         "--v=0",
		"--ephemeral":                                      "--disable-capability=CONTROLLER_SERVICE",
		"--maxvolumespernode=3 --attach-limit=-1":          "--max-volumes-per-node=0",
	} {
		flags, err := parse(t, "-nodeid n "+given)
		require.NoError(t, err, given)

		args := flags.Args([]string{"/kubelet", "/tmp"})
		require.Subset(t, args, append(strings.Fields(want), "--node-id=n"), given)
	}

	flags, err := parse(t, "-nodeid=n --enable-attach --enable-controller-modify-volume --enable-snapshot-metadata")
	require.NoError(t, err)
	require.Equal(t, []string{"--disable-capability=SNAPSHOT_ACCESSIBILITY_CONSTRAINTS"},
		slices.DeleteFunc(flags.Args([]string{"/kubelet"}), func(arg string) bool { return !strings.HasPrefix(arg, "--disable") }),
		"want: all that hostpathplugin can serve is served")
}

func TestWrongFlagsAreRefused(t *testing.T) {
	t.Parallel()

	for given, says := range map[string]string{
		"":                               "-nodeid",
		"-nodeid=n now":                  `"now"`,
		"-nodeid=n --no-such-flag":       "no-such-flag",
		"-nodeid=n --capacity=fast":      "KIND=SIZE",
		"-nodeid=n --capacity==1Gi":      "KIND=SIZE",
		"-nodeid=n --capacity=fast=many": "many",
		"-nodeid=n --capacity=../x=1Gi":  "../x",
		"-nodeid=n --attach-limit=few":   "few",

		"-nodeid=n --capacity=a,b=1Gi": "a,b",

		"-nodeid=n --snapshot-metadata-block-type=SHORT":   "FIXED_LENGTH",
		"-nodeid=n --snapshot-metadata-block-type=UNKNOWN": "FIXED_LENGTH",
	} {
		_, err := parse(t, given)
		require.ErrorIs(t, err, hostpath.ErrFlag, given)
		errtext.Require(t, err, says, given)
	}

	_, err := parse(t, "--help")
	require.ErrorIs(t, err, flag.ErrHelp)
}

// TestBlocksAreOfTheTypeOfTheFlag, by default of one length.
func TestBlocksAreOfTheTypeOfTheFlag(t *testing.T) {
	t.Parallel()

	for given, want := range map[string]csi.BlockMetadataType{
		"": csi.BlockMetadataType_FIXED_LENGTH, "--snapshot-metadata-block-type=VARIABLE_LENGTH": csi.BlockMetadataType_VARIABLE_LENGTH,
	} {
		flags, err := parse(t, "-nodeid=n "+given)
		require.NoError(t, err)
		require.Equal(t, want, flags.MetadataBlocks(), given)
	}
}

// TestVersionAndProxyNeedNoNode and say what is asked for.
func TestVersionAndProxyNeedNoNode(t *testing.T) {
	t.Parallel()

	flags, err := parse(t, "--version")
	require.NoError(t, err)
	require.True(t, flags.IsVersion(), "want: the version is asked for")

	_, asked := flags.ProxyArgs()
	require.False(t, asked, "want: no proxy is asked for")

	flags, err = parse(t, "-endpoint=/csi/csi.sock --proxy-endpoint=tcp://:9000")
	require.NoError(t, err)

	args, asked := flags.ProxyArgs()
	require.True(t, asked, "want: a proxy is asked for")
	require.Equal(t, []string{"--endpoint=/csi/csi.sock", "--proxy-listen=tcp://:9000"}, args)
}

package node_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

const (
	// onceLoop is beyond the loop devices of the machine and of other tests; each phase of a kind has loopsOfPhase.
	onceLoop     = 810_000
	loopsOfPhase = 4

	onceBytes  = 16 << 20
	onceGrowth = 4 << 20
	// onceMost is --max-volume-size.
	onceMost = 1 << 30

	reader = csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
)

// onceDirectories are what a node needs in its directory.
var onceDirectories = []string{"pool", "kubelet", "kata", "shims"}

var errOnce = errors.New("the node is wrong")

// onceKind is a way to use a volume.
type onceKind struct {
	name       string
	capability *csi.VolumeCapability
	context    map[string]string
	// unstaged means that the CO stages no volume.
	unstaged bool
	// bytes are the size of the volume, onceBytes if it is 0.
	bytes int64
	// phases are the names of those that do something with it.
	phases []string
	// phase is the number of the phase that is run; 0 is none of oncePhases.
	phase int
	// ignored matches calls beside onceIgnored.
	ignored string
}

func onceKinds() []onceKind {
	return []onceKind{
		{
			name: "image", capability: withGroup(csiclient.MountCapability(multiWriter, "ext4")),
			phases: []string{
				"stage", "stage again", "stage formatted", "publish", "publish again", "publish read-only", "stats", "local",
				"unpublish", "unstage", "unpublish unrecorded", "unstage unrecorded", "start", "start unmounted",
			},
		},
		{
			name: "block", capability: csiclient.BlockCapability(multiWriter),
			phases: []string{
				"stage", "publish", "publish read-only", "stats", "expand published", "unpublish reader", "unstage", "start",
			},
		},
		{
			name: "directory", capability: csiclient.MountCapability(multiWriter, ""), context: map[string]string{volume.KeyBacking: "directory"},
			phases: []string{"stage", "stats", "unstage unrecorded"},
		},
		{
			name: "direct", capability: csiclient.MountCapability(writer, "ext4"), context: map[string]string{volume.KeyDirectAssign: "true"},
			phases: []string{"stage", "stage formatted", "publish", "publish again", "expand", "unpublish", "unstage", "unpublish unrecorded"},
			// An assignment that cannot be read is restored; the mounts are listed in another way.
			ignored: "csiPlugin|^openat2 kubelet/target|^statmount",
		},
		{
			name: "inline", capability: withGroup(csiclient.MountCapability(writer, "ext4")), unstaged: true,
			context: map[string]string{volume.KeyEphemeral: "true", volume.KeySize: "16Mi"},
			phases:  []string{"publish", "publish again", "publish unmounted", "unpublish", "unpublish unrecorded", "start unmounted"},
		},
		{
			name: "unstaged", capability: csiclient.MountCapability(multiWriter, "ext4"), unstaged: true,
			phases: []string{"publish", "publish again", "unpublish", "start unmounted"},
		},
		{
			name: "copy", capability: csiclient.MountCapability(writer, "ext4"), context: map[string]string{volume.KeyCopy: "true"},
			phases: []string{"stage formatted"},
		},
		{
			name: "copy for reading", capability: csiclient.MountCapability(reader, "ext4"), context: map[string]string{volume.KeyCopy: "true"},
			phases: []string{"stage formatted"},
		},
		// An ext4 grows while it is mounted only with CAP_SYS_RESOURCE, which not all tests have.
		{name: "xfs", capability: csiclient.MountCapability(writer, "xfs"), bytes: 300 << 20, phases: []string{"expand"}},
	}
}

func withGroup(capability *csi.VolumeCapability) *csi.VolumeCapability {
	capability.GetMount().VolumeMountGroup = "4711"

	return capability
}

// id returns the volume's id, which differs for each kind and phase: devices are found by the names of images.
func (k onceKind) id() string { return fmt.Sprintf("01890000-0000-7000-8000-%012d", k.number()) }

// number is the position of the kind and its phase among all.
func (k onceKind) number() int {
	return 100*slices.IndexFunc(onceKinds(), func(other onceKind) bool { return other.name == k.name }) + k.phase
}

func (k onceKind) isInline() bool { return k.name == "inline" }

func (k onceKind) has(phase string) bool { return slices.Contains(k.phases, phase) }

func (k onceKind) size() int64 { return cmp.Or(k.bytes, onceBytes) }

type onceCall func(n *onceNode, ctx context.Context) error

// oncePhase is a call of which each system call fails once.
type oncePhase struct {
	name   string
	before []onceCall
	run    onceCall
	// mounted are the names of what is mounted after it.
	mounted []string
	// logged: it need not report a failure, but must be right.
	logged bool
}

func oncePhases() []oncePhase {
	stage, publish, reader := (*onceNode).stage, (*onceNode).publish, (*onceNode).publishReader
	unpublish, unstage, lose := (*onceNode).unpublish, (*onceNode).unstage, (*onceNode).loseRecords
	up, all := []string{"staging", "target"}, []string{"staging", "target", "reader"}

	return []oncePhase{
		{name: "stage", run: stage, mounted: up[:1]},
		{name: "stage again", before: []onceCall{stage}, run: stage, mounted: up[:1]},
		{name: "stage formatted", before: []onceCall{(*onceNode).format}, run: stage, mounted: up[:1]},
		{name: "publish", before: []onceCall{stage}, run: publish, mounted: up},
		{name: "publish again", before: []onceCall{stage, publish}, run: publish, mounted: up},
		{name: "publish unmounted", before: []onceCall{stage, publish, (*onceNode).unmount}, run: publish, mounted: up},
		{name: "publish read-only", before: []onceCall{stage, publish}, run: reader, mounted: all},
		{name: "stats", before: []onceCall{stage, publish}, run: (*onceNode).stats, mounted: up},
		{name: "expand", before: []onceCall{stage}, run: (*onceNode).expand, mounted: up[:1]},
		{name: "expand published", before: []onceCall{stage, publish, reader}, run: (*onceNode).expand, mounted: all},
		{name: "local", before: []onceCall{stage, publish}, run: (*onceNode).local, mounted: up},
		{name: "unpublish reader", before: []onceCall{stage, publish, reader}, run: (*onceNode).unpublishReader, mounted: up},
		{name: "unpublish", before: []onceCall{stage, publish, reader, (*onceNode).restart, (*onceNode).unpublishReader}, run: unpublish, mounted: up[:1]},
		{name: "unstage", before: []onceCall{stage}, run: unstage},
		{name: "unpublish unrecorded", before: []onceCall{stage, publish, lose}, run: unpublish, mounted: up[:1]},
		{name: "start", before: []onceCall{stage, publish}, run: (*onceNode).start, mounted: up, logged: true},
		{name: "start unmounted", before: []onceCall{stage, publish, (*onceNode).unmount}, run: (*onceNode).startUnused, logged: true},
		{name: "unstage unrecorded", before: []onceCall{stage, lose}, run: unstage},
	}
}

func onceOperations() map[string]syscallfault.Operation {
	all := map[string]syscallfault.Operation{}

	for _, kind := range onceKinds() {
		for i, phase := range oncePhases() {
			one := kind
			one.phase = i + 1
			all[kind.name+": "+phase.name] = func(directory string) (run, end func() error, err error) {
				return begin(one, phase, directory, onceLoop+one.number()*loopsOfPhase)
			}
		}
	}

	return all
}

func begin(kind onceKind, phase oncePhase, directory string, first int) (run, end func() error, err error) {
	ctx := context.Background()
	n := &onceNode{kind: kind, directory: directory, first: first}

	err = n.open(ctx)
	if err == nil {
		err = n.create()
	}

	for _, call := range phase.before {
		if err == nil {
			err = call(n, ctx)
		}
	}

	return func() error { return phase.run(n, ctx) },
		func() error { return errors.Join(n.mounted(phase.mounted...), n.down(ctx)) }, err
}

// TestEachCallFailsOnce has each system call of the node's calls fail once, on files, mounts and devices:
// the call fails, and succeeds when it is repeated; nothing is left of it after the volume is unstaged.
func TestEachCallFailsOnce(t *testing.T) {
	namespace.NeedRoot(t)

	for _, kind := range onceKinds() {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()

			for _, phase := range oncePhases() {
				if kind.has(phase.name) {
					t.Run(phase.name, func(t *testing.T) {
						t.Parallel()
						failOnce(t, kind, phase)
					})
				}
			}
		})
	}
}

// onceIgnored are calls that may fail without a report: sysfs files' sizes and what some kernels lack,
// what another call repeats (the mount of a path; whether an image is locked), the kernel's error count, which
// the next probe reads, and those that the tests of pkg/state, internal/pool and pkg/node/freeze have fail.
var onceIgnored = []string{
	"^fstat(at)? /(sys|dev)/", "^(statx|fstatat) kubelet", "^listmount", "/discard_max(_hw)?_bytes#", "^ioctl.0x4c05 ", "^ioctl.0xc004587[78] ", "errors_count#",
	"^openat.0xa0002 pool/images", "^flock pool/images", "pool/scratch", "pool/ephemeral/scratch",
	"durable.json",
	// Files whose names are other ones in each run: ids that it makes, some of which are removed in the
	// background, and assignments, which are named by their target paths.
	"/ID[0-9]", "inode", " kata/",
}

func failOnce(t *testing.T, kind onceKind, phase oncePhase) {
	t.Helper()

	reported := []string{""}
	if phase.logged {
		reported = nil
	}

	syscallfault.EachCallFailsOnce(t, &syscallfault.Case{
		Operation: kind.name + ": " + phase.name, Mounts: true,
		// What is mounted is lost with the machine, and records of what is undone are written lazily.
		Lossy:    []string{"*", "*/*", "*/*/*", "*/*/*/*", "*/*/*/*/*"},
		Reported: reported, Except: regexp.MustCompile(strings.Join(append([]string{cmp.Or(kind.ignored, "^$")}, onceIgnored...), "|")),
		// The state accepts no change after a failed one, until a restart.
		Lasting: "state is read-only",
		Prepare: func(t *testing.T, directory string) {
			t.Helper()
			t.Cleanup(func() { harness.CheckNothingIsLeft(t, directory) })

			for _, name := range onceDirectories {
				require.NoError(t, os.Mkdir(filepath.Join(directory, name), 0o700))
			}
		},
		Verify: func(t *testing.T, directory string) {
			t.Helper()

			left, err := os.ReadDir(filepath.Join(directory, "kubelet"))
			require.NoError(t, err)

			for _, each := range left {
				// The CO's, the driver's own, and what only a record says to be the driver's.
				require.True(t, each.Name() == "staging" || each.Name() == "own" || each.Name() == "target" && strings.Contains(phase.name, "unrecorded"),
					"want: %s is not left in the kubelet's directory", each.Name())
			}
		},
	})
}

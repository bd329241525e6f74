package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/device"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/poolset"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

const (
	// onceLoop is beyond the loop devices of the machine and of other tests.
	onceLoop  = 820_000
	onceBytes = 16 << 20
	// onceGuest is the size of the filesystem that a guest reports.
	onceGuest = 15 << 20
)

func TestMain(m *testing.M) {
	syscallfault.ServeIfAsked(onceOperations())
	os.Exit(namespace.Main(m))
}

var (
	errOnce     = errors.New("the probe is wrong")
	errShutDown = errors.New("the filesystem has shut down")
	errChanged  = errors.New("all volumes are to be probed")
)

// onceKind is a volume that is healthy but for what its kind says.
type onceKind struct {
	name string
	// change changes the record of an image that is staged, and published for reading.
	change func(used *staged.Volume)
	// isUnused means that the volume is not in use, and isBusy that a call could not detach its device.
	isUnused, isBusy bool
	want             onceAnswer
}

// onceAnswer is what a probe has found. It has the sizes and ids of the kernel's choice only as far as
// they are known.
type onceAnswer struct {
	reasons    []health.Reason
	usage      int64
	attached   bool
	imageBytes int64
	mounts     int
	filesystem bool
	period     time.Duration
	marked     bool
}

func onceKinds() []onceKind {
	return []onceKind{
		{name: "image", change: func(*staged.Volume) {}, want: onceAnswer{
			usage: 1, attached: true, imageBytes: onceBytes, mounts: 2, filesystem: true, period: time.Hour, marked: true,
		}},
		{name: "directory", change: func(used *staged.Volume) { used.Parameters.Backing = volume.BackingDirectory }, want: onceAnswer{
			mounts: 2, period: time.Hour,
		}},
		{name: "raw", change: func(used *staged.Volume) { used.Capability.Block = true }, want: onceAnswer{
			usage: onceBytes, attached: true, imageBytes: onceBytes, mounts: 1, period: time.Hour,
		}},
		{name: "direct", change: func(used *staged.Volume) { used.Parameters.DirectAssign = true }, want: onceAnswer{
			usage: onceGuest, attached: true, imageBytes: onceBytes, mounts: 1, period: time.Hour,
		}},
		{name: "stored", isUnused: true, want: onceAnswer{reasons: []health.Reason{health.FilesystemErrors}}},
		{name: "busy", isUnused: true, isBusy: true, want: onceAnswer{reasons: []health.Reason{health.FilesystemErrors, health.VolumeBusy}}},
	}
}

// id returns the volume's id, which no other kind has: devices are found by the names of images.
func (k onceKind) id() string {
	for i, each := range onceKinds() {
		if each.name == k.name {
			return fmt.Sprintf("01890000-0000-7000-8001-%012d", i)
		}
	}

	return ""
}

func (k onceKind) isStaged() bool { return !k.isUnused && k.name != "raw" && k.name != "direct" }

func (k onceKind) record(directory string) *staged.Volume {
	used := &staged.Volume{
		VolumeID: k.id(), StagingPath: filepath.Join(directory, "kubelet", "staging"),
		Capability:   volume.Capability{Mode: "SINGLE_NODE_WRITER", FSType: filesystem.Ext4},
		Parameters:   volume.Parameters{Pool: "first", Backing: volume.BackingImage},
		Publications: []staged.Publication{{TargetPath: filepath.Join(directory, "kubelet", "target"), ReadOnly: true}},
	}
	if k.change != nil {
		k.change(used)
	}

	return used
}

// onceNode is a node with one volume, whose devices it knows.
type onceNode struct {
	*node

	devices device.Attachments
}

func (n *onceNode) Found(string) (device.Attachments, error) { return n.devices, nil }

// onceProbe is a prober in a directory.
type onceProbe struct {
	*Prober

	kind   onceKind
	pools  *pool.Set
	store  *state.Store
	marked bool
	// wrong are the answers that are.
	wrong error
}

func onceOperations() map[string]syscallfault.Operation {
	all := map[string]syscallfault.Operation{}

	for _, kind := range onceKinds() {
		all[kind.name] = func(directory string) (run, end func() error, err error) {
			p := &onceProbe{kind: kind}

			return p.run, p.end, p.begin(context.Background(), directory)
		}
	}

	all["shut down"] = func(directory string) (run, end func() error, err error) {
		p := &onceProbe{kind: onceKinds()[0]}

		return p.runShutDown, p.end, p.begin(context.Background(), directory)
	}
	all["changed"] = func(directory string) (run, end func() error, err error) {
		p := &onceProbe{kind: onceKinds()[0]}

		return p.runChanged, p.end, p.begin(context.Background(), directory)
	}

	return all
}

func (p *onceProbe) begin(ctx context.Context, directory string) error {
	log := slog.New(slog.DiscardHandler)
	used := &onceNode{node: &node{inUse: map[string]*staged.Volume{}, attached: true, usage: mount.Usage{Bytes: mount.Amount{Total: onceGuest, Available: onceGuest}}}}

	text, err := os.ReadFile(filepath.Join(directory, "devices"))
	if err == nil {
		_, err = fmt.Sscan(string(text), &used.devices.Staged, &used.devices.StagedSequence, &used.devices.ReadOnly, &used.devices.ReadOnlySequence)
	}

	if err != nil {
		return err
	}

	p.pools, err = poolset.Open(map[string]string{"first": filepath.Join(directory, "pool")})
	if err != nil {
		return err
	}

	used.pool, err = p.pools.Get("first")
	if err != nil {
		return err
	}

	dirs, err := mount.NewAllowedDirs(filepath.Join(directory, "kubelet"))
	if err != nil {
		return err
	}

	loops := loop.NewLoops(loop.LoopsOptions{First: onceLoop})
	p.store = state.New(filepath.Join(directory, "state"), state.Options{Log: log, LazyFlush: time.Hour})
	records := fsck.NewRecords(p.store)

	if err := p.store.Open(ctx); err != nil {
		return err
	}

	if err := records.PutLazily(&fsck.Result{
		VolumeID: p.kind.id(), Pool: "first", FSType: filesystem.Ext4, Verdict: fsck.VerdictClean, How: fsck.HowStage, CleanAt: time.Now(),
	}); err != nil {
		return err
	}

	p.Prober = New(Config{
		Host:    Host{Dirs: dirs, Loops: loops, Observer: observe.New(dirs, loops), Raw: used},
		Volumes: used, Stored: used, Assignments: used, Revoke: used.revokeLost, Pools: p.pools, Memory: NewMemory(),
		Operations: operation.NewGroup(), Checker: newChecker(records, p.pools, log, nil), Log: log,
		Monitoring: Monitoring{
			MarkFilesystem: func(root *os.File) error { p.marked = root != nil; return nil }, IOErrorHold: time.Minute,
		},
	})

	if !p.kind.isUnused {
		used.inUse[p.kind.id()] = p.kind.record(directory)

		return nil
	}

	p.config.Checker.Suspect(p.kind.id(), nil, *suspected())

	if p.kind.isBusy {
		p.busy.add(p.kind.id(), busyVolume{
			device: Attachment{Number: used.devices.Staged, Sequence: used.devices.StagedSequence}, searchedAt: time.Now().Add(time.Hour),
		})
	}

	return nil
}

// run probes the volume. An answer without an error must be right.
func (p *onceProbe) run() error {
	observed, err := p.probe(context.Background(), p.kind.id())
	if err != nil {
		return err
	}

	last := p.observations.last(p.kind.id())
	got := onceAnswer{
		reasons: reasons(observed.Entries), attached: last.attached != nil && last.attached.deviceBytes == onceBytes,
		imageBytes: last.imageBytes, filesystem: last.filesystem != [2]int32{}, period: last.checkPeriod, marked: p.marked,
	}

	for _, each := range last.mounts {
		if each.id != 0 {
			got.mounts++
		}
	}

	if observed.Usage != nil {
		got.usage = observed.Usage.Bytes.Total
	}

	// The size of a filesystem is not known.
	if p.kind.want.usage == 1 && got.usage > onceBytes/2 && got.usage < onceBytes {
		got.usage = 1
	}

	if !reflect.DeepEqual(p.kind.want, got) {
		p.wrong = fmt.Errorf("%w: %+v instead of %+v", errOnce, got, p.kind.want)
	}

	return nil
}

// runShutDown fails with the condition of a filesystem that has shut down. The probe itself succeeds.
func (p *onceProbe) runShutDown() error {
	observed, err := p.probe(context.Background(), p.kind.id())

	switch {
	case err == nil && len(observed.Entries) == 0:
		return nil
	case err == nil && slices.Equal(reasons(observed.Entries), []health.Reason{health.DiskFailure}):
		return errShutDown
	}

	p.wrong = errors.Join(p.wrong, err, fmt.Errorf("%w: %v", errOnce, observed.Entries))

	return nil
}

// runChanged fails if the mounts of all volumes may have changed: none has.
func (p *onceProbe) runChanged() error {
	if found := p.volumesAffectedBy(health.Event{Kind: health.MountsChanged}); !slices.Equal(found, []string{p.kind.id()}) {
		return nil
	}

	return errChanged
}

// end requires that the probes have left nothing.
func (p *onceProbe) end() error {
	err := errors.Join(p.wrong, p.store.Close(), p.pools.Close())

	if len(p.gate.byVolume) > 0 {
		err = errors.Join(err, fmt.Errorf("%w: a probe is still in the volume", errOnce))
	}

	// No probe is in the pool if as many as may be there at once can enter it.
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()

	for range pool.MaxInPool {
		release, full := p.Prober.pools.Acquire(ctx, "first")
		if full != nil {
			return errors.Join(err, full)
		}
		defer release() //nolint:gocritic // all are taken at once
	}

	return err
}

// prepare makes the volume, and mounts it as its record says.
func (k onceKind) prepare(t *testing.T, directory string) {
	t.Helper()

	for _, name := range []string{"pool", "kubelet"} {
		require.NoError(t, os.Mkdir(filepath.Join(directory, name), 0o700))
	}

	pools, err := poolset.Open(map[string]string{"first": filepath.Join(directory, "pool")})
	require.NoError(t, err)

	defer pools.Close()

	stored, err := pools.Get("first")
	require.NoError(t, err)

	used, devices := k.record(directory), device.Attachments{Numbers: device.Numbers{Staged: device.None, ReadOnly: device.None}}
	source, fsType, flags := stored.ObjectPath(used.Object()), "", uintptr(unix.MS_BIND)

	if used.Parameters.Backing.HasFilesystem() {
		require.NoError(t, stored.Images.Create(k.id(), onceBytes, false))

		made, err := child.Command(t, "mkfs.ext4", "-q", "-F", "-b", "4096", source).CombinedOutput()
		require.NoError(t, err, string(made))

		if k.name != "stored" {
			source, fsType, flags = k.attach(t, stored, &devices), filesystem.Ext4, 0
		}
	} else {
		require.NoError(t, stored.Directories.Create(k.id(), 0, false))
	}

	text := fmt.Sprintln(devices.Staged, devices.StagedSequence, devices.ReadOnly, devices.ReadOnlySequence)
	require.NoError(t, os.WriteFile(filepath.Join(directory, "devices"), []byte(text), 0o600))

	if k.isStaged() {
		k.mount(t, source, used.StagingPath, fsType, flags)
		source, fsType, flags = used.StagingPath, "", unix.MS_BIND
	}

	switch target := used.Publications[0].TargetPath; {
	case k.isUnused:
	case used.IsDirect():
		k.mount(t, observe.DirectSource(k.id()), target, observe.DirectFSType, 0)
	case used.Capability.Block:
		require.NoError(t, os.WriteFile(target, nil, 0o600))
		k.mount(t, source, target, "", unix.MS_BIND)
	default:
		k.mount(t, source, target, fsType, flags)
	}
}

func (k onceKind) mount(t *testing.T, source, path, fsType string, flags uintptr) {
	t.Helper()

	if _, err := os.Stat(path); err != nil {
		require.NoError(t, os.Mkdir(path, 0o700))
	}

	require.NoError(t, unix.Mount(source, path, fsType, flags, ""))
	t.Cleanup(func() {
		// A test may have unmounted it.
		_ = unix.Unmount(path, unix.MNT_DETACH)
	})
}

// attach attaches the image, a raw-block one twice, and returns the path of its device.
func (k onceKind) attach(t *testing.T, stored *pool.Pool, devices *device.Attachments) string {
	t.Helper()

	loops := loop.NewLoops(loop.LoopsOptions{First: onceLoop})
	attach := func(readOnly bool) *loop.Device {
		image, err := stored.Images.Open(k.id(), os.O_RDWR)
		require.NoError(t, err)

		defer image.Close()

		device, err := loops.Attach(t.Context(), image, loop.AttachOptions{BlockSize: 4096, ReadOnly: readOnly, PreferredNumber: -1})
		require.NoError(t, err)
		require.NoError(t, device.File().Close())
		t.Cleanup(func() { require.NoError(t, loops.Detach(context.Background(), device.Number)) })

		return device
	}

	device := attach(false)
	devices.Staged, devices.StagedSequence = device.Number, device.Sequence

	if k.name == "raw" {
		second := attach(true)
		devices.ReadOnly, devices.ReadOnlySequence = second.Number, second.Sequence
	}

	return device.Path
}

// onceIgnored are calls that may fail without a report: sysfs files' sizes and what some kernels lack, what
// another call repeats (the mount of a path; whether an image is locked), and the period of the checks.
var onceIgnored = []string{"^listmount", "^(statx|fstatat) kubelet", "^fstat(at)? /(sys|dev)/", "^flock pool/images", "pool/attributes"}

// TestEachCallFailsOnce has each system call of a probe fail once: the probe fails, or finds what
// is there. Unknown is never healthy, missing or lost.
func TestEachCallFailsOnce(t *testing.T) {
	namespace.NeedRoot(t)

	for _, kind := range onceKinds() {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()

			c := kind.failing(kind.name, onceIgnored...)
			c.Causes = true
			syscallfault.EachCallFailsOnce(t, c)
		})
	}
}

// TestCallsOnAShutDownFilesystem fail with EIO, each once: the condition says so.
func TestCallsOnAShutDownFilesystem(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	c := onceKinds()[0].failing("shut down", "^(listmount|statx|fstat |openat\\+)", "pool/")
	c.Mounts = false
	syscallfault.EachCallFailsOnce(t, c)
}

// TestAllVolumesAreProbedIfTheMountsAreUnknown has each call fail once that lists the mounts.
func TestAllVolumesAreProbedIfTheMountsAreUnknown(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()
	syscallfault.EachCallFailsOnce(t, onceKinds()[0].failing("changed", "^(fstat|statmount)"))
}

// failing is an operation with the volume of which each call fails once but for those that are ignored.
func (k onceKind) failing(operation string, ignored ...string) *syscallfault.Case {
	return &syscallfault.Case{
		Operation: operation, Mounts: true,
		Lossy: []string{"*", "*/*", "*/*/*"}, Reported: []string{""},
		Except:  regexp.MustCompile(strings.Join(ignored, "|")),
		Prepare: k.prepare,
		Verify:  func(*testing.T, string) {},
	}
}

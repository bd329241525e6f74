package node_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/logs"
)

// onceNode is a node in a directory, with one volume.
type onceNode struct {
	*node.Service

	kind      onceKind
	directory string
	first     int
	// sys is what the node has for /sys, if it is not empty.
	sys string
	// runtime is a program that reaches guests; without one there are none.
	runtime string
	pools   *pool.Set
	store   *state.Store
	// point, if it is not nil, is called at the points of operations.
	point operation.Hook
	// failures are what the node has logged as errors.
	failures logs.Buffer
}

func (n *onceNode) in(name string) string { return filepath.Join(n.directory, name) }

// open starts the node as it finds its directory.
func (n *onceNode) open(ctx context.Context) error {
	log := slog.New(slog.NewTextHandler(&n.failures, &slog.HandlerOptions{Level: slog.LevelError}))

	// Without a controller that expands volumes the node does it. An answer with a condition is none that fails.
	names := []string{"controller:EXPAND_VOLUME"}
	if n.runtime == "" {
		names = append(names, "VOLUME_CONDITION")
	}

	if n.kind.unstaged && !n.kind.isInline() {
		names = append(names, "STAGE_UNSTAGE_VOLUME")
	}

	left, err := capability.Without(names...)
	if err != nil {
		return err
	}

	n.pools = pool.NewSet(map[string]string{"default": n.in("pool")})
	// What is done in the background waits for the end, so that each run makes the same calls.
	n.store = state.New(n.in("state"), state.Options{Log: log, LazyFlush: time.Hour, RetrySpace: time.Hour})

	dirs, err := mount.NewAllowedDirs(n.in("kubelet"))
	if err != nil {
		return err
	}

	n.Service, err = node.New(node.Config{
		Common: node.Common{
			NodeID: "here", Capabilities: left, Store: n.store, Pools: n.pools, Operations: operation.NewGroup(), Log: log,
		},
		MaxVolumeBytes: onceMost, Admission: &pool.Admission{Overcommit: 20}, Point: n.point,
		Settings: node.Settings{
			Loops:  loop.LoopsOptions{First: n.first, Sys: n.sys},
			Direct: kata.Config{Root: n.in("kata"), Guest: kata.GuestConfig{ShimRoots: []string{n.in("shims")}, KataRuntime: n.runtime}},
		},
		Ephemeral: n.pools.Ephemeral(), Dirs: dirs, StagingDir: n.in("kubelet/own"),
	})
	if err != nil {
		return err
	}

	if err := n.recover(ctx); err != nil {
		return errors.Join(err, n.close())
	}

	return nil
}

func (n *onceNode) recover(ctx context.Context) error {
	if err := n.store.Open(ctx); err != nil {
		return err
	}

	if err := n.Recover(ctx); err != nil {
		return err
	}

	opened, err := pool.Open("default", n.in("pool"), pool.Options{})
	if err != nil {
		return err
	}

	n.pools.Serve(opened)

	err = n.RecoverPool(ctx, opened)
	if err == nil {
		n.PoolServed(ctx, "default")
	}

	return err
}

// close ends the node, if it is not ended yet.
func (n *onceNode) close() error {
	ending := n.Service
	if ending == nil {
		return nil
	}

	n.Service = nil

	return errors.Join(ending.Close(), n.store.Close(), n.pools.Close())
}

// create makes the volume as a controller does, unless it is there.
func (n *onceNode) create() error {
	stored, err := n.pools.Get("default")

	switch {
	case err != nil || n.kind.isInline():
		return err
	case n.kind.name == "directory":
		return stored.Directories.Create(n.kind.id(), n.kind.size(), false)
	}

	_, err = stored.Size(pool.Object{ID: n.kind.id(), Backing: volume.BackingImage})
	if errors.Is(err, pool.ErrMissing) {
		err = stored.Images.Create(n.kind.id(), n.kind.size(), false)
	}

	if err != nil {
		return err
	}

	return stored.SetMutable(n.kind.id(), volume.Mutable{volume.KeyReadAheadKiB: "64"})
}

// format makes the filesystem of the volume as another node does.
func (n *onceNode) format(ctx context.Context) error {
	request := n.stageRequest()
	request.VolumeContext = maps.Clone(request.GetVolumeContext())
	delete(request.GetVolumeContext(), volume.KeyCopy)

	if n.kind.name == "copy for reading" {
		request.VolumeCapability = csiclient.MountCapability(writer, "ext4")
	}

	if _, err := n.NodeStageVolume(ctx, request); err != nil {
		return err
	}

	return n.unstage(ctx)
}

func (n *onceNode) stageRequest() *csi.NodeStageVolumeRequest {
	return &csi.NodeStageVolumeRequest{
		VolumeId: n.kind.id(), StagingTargetPath: n.in("kubelet/staging"), VolumeCapability: n.kind.capability, VolumeContext: n.kind.context,
	}
}

func (n *onceNode) stage(ctx context.Context) error {
	if n.kind.unstaged {
		return nil
	}

	_, err := n.NodeStageVolume(ctx, n.stageRequest())

	return err
}

func (n *onceNode) publishAt(ctx context.Context, name string, readOnly bool) error {
	request := &csi.NodePublishVolumeRequest{
		VolumeId: n.kind.id(), StagingTargetPath: n.in("kubelet/staging"), TargetPath: n.in("kubelet/" + name),
		VolumeCapability: n.kind.capability, VolumeContext: n.kind.context, Readonly: readOnly,
	}
	if n.kind.unstaged {
		request.StagingTargetPath = ""
	}

	_, err := n.NodePublishVolume(ctx, request)

	return err
}

func (n *onceNode) publish(ctx context.Context) error { return n.publishAt(ctx, "target", false) }

// publishReader publishes the volume read-only at another target, if it may have two.
func (n *onceNode) publishReader(ctx context.Context) error {
	if !n.kind.has("publish read-only") {
		return nil
	}

	return n.publishAt(ctx, "reader", true)
}

func (n *onceNode) unpublish(ctx context.Context) error {
	_, err := n.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: n.kind.id(), TargetPath: n.in("kubelet/target")})

	return err
}

func (n *onceNode) unpublishReader(ctx context.Context) error {
	_, err := n.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: n.kind.id(), TargetPath: n.in("kubelet/reader")})

	return err
}

func (n *onceNode) unstage(ctx context.Context) error {
	if n.kind.unstaged {
		return nil
	}

	_, err := n.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: n.kind.id(), StagingTargetPath: n.in("kubelet/staging")})

	return err
}

func (n *onceNode) stats(ctx context.Context) error { return n.statsAt(ctx, "target") }

func (n *onceNode) statsAt(ctx context.Context, name string) error {
	got, err := n.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: n.kind.id(), VolumePath: n.in("kubelet/" + name)})
	if err != nil {
		return err
	}

	if total := got.GetUsage()[0].GetTotal(); total <= 0 {
		return fmt.Errorf("%w: the volume has a size of %d", errOnce, total)
	}

	return nil
}

func (n *onceNode) expand(ctx context.Context) error {
	wanted := n.kind.size() + onceGrowth

	got, err := n.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
		VolumeId: n.kind.id(), VolumePath: n.in("kubelet/staging"), CapacityRange: &csi.CapacityRange{RequiredBytes: wanted},
	})
	if err == nil && got.GetCapacityBytes() != wanted {
		err = fmt.Errorf("%w: the volume has %d bytes, not %d", errOnce, got.GetCapacityBytes(), wanted)
	}

	return err
}

// start is a restart after which the node still knows what it has staged and published.
func (n *onceNode) start(ctx context.Context) error {
	if err := n.restart(ctx); err != nil {
		return err
	}

	at, used, err := n.Local().InUse(n.kind.id())
	if want := n.in("kubelet/target"); err == nil && (at != want || !used) {
		err = fmt.Errorf("%w: it is in use (%t) at %q, not at %q", errOnce, used, at, want)
	}

	return err
}

// unmount unmounts what the CO has mounted, as another program does. A staging of the node's own remains.
func (n *onceNode) unmount(ctx context.Context) error {
	target := unix.Unmount(n.in("kubelet/target"), unix.UMOUNT_NOFOLLOW)
	if n.kind.unstaged {
		return target
	}

	number, err := n.device()
	if err != nil {
		return err
	}

	err = errors.Join(target, unix.Unmount(n.in("kubelet/staging"), unix.UMOUNT_NOFOLLOW))

	// The kernel detaches the device by itself, but later.
	return errors.Join(err, loop.NewLoops(loop.LoopsOptions{First: n.first}).Detach(ctx, number))
}

// device returns the number of the only loop device that has an image of the node's pools.
func (n *onceNode) device() (number int, err error) {
	found, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return 0, err
	}

	for _, each := range found {
		text, err := os.ReadFile(each)
		if err != nil || !strings.HasPrefix(string(text), n.in("pool")) {
			continue // detached meanwhile, or another test's
		}

		_, err = fmt.Sscanf(each, "/sys/block/loop%d/", &number)

		return number, err
	}

	return 0, fmt.Errorf("%w: no device has the volume's image", errOnce)
}

// startUnused is a restart after which the node knows that the volume is not in use any more.
func (n *onceNode) startUnused(ctx context.Context) error {
	if err := n.restart(ctx); err != nil {
		return err
	}

	at, used, err := n.Local().InUse(n.kind.id())
	if err == nil && used {
		err = fmt.Errorf("%w: it is in use at %q", errOnce, at)
	}

	return err
}

// local asks what a controller in the process asks.
func (n *onceNode) local(ctx context.Context) error {
	if n.kind.isInline() {
		return nil
	}

	at, used, err := n.Local().InUse(n.kind.id())
	if err != nil {
		return err
	}

	if want := n.in("kubelet/target"); at != want || !used {
		return fmt.Errorf("%w: it is in use (%t) at %q, not at %q", errOnce, used, at, want)
	}

	if err := n.Local().ApplyMutable(ctx, n.kind.id()); err != nil {
		return err
	}

	called := false

	err = n.Local().WithFrozen(ctx, []string{n.kind.id(), n.kind.id(), missingID}, func(context.Context) error {
		called = true

		return nil
	})
	if err == nil && !called {
		err = fmt.Errorf("%w: the copy was not made", errOnce)
	}

	return err
}

// restart starts another node in the directory.
func (n *onceNode) restart(ctx context.Context) error {
	if err := n.close(); err != nil {
		return err
	}

	return n.open(ctx)
}

// loseRecords is restart without the records.
func (n *onceNode) loseRecords(ctx context.Context) error {
	if err := errors.Join(n.close(), os.RemoveAll(n.in("state"))); err != nil {
		return err
	}

	return n.open(ctx)
}

// mounted requires what is mounted at the paths of the volume.
func (n *onceNode) mounted(names ...string) error {
	for _, name := range []string{"staging", "target", "reader"} {
		want := slices.Contains(names, name)

		switch {
		case name == "staging" && (n.kind.unstaged || n.kind.name == "block" || n.kind.name == "direct"):
			want = false
		case name == "reader" && !n.kind.has("publish read-only"):
			want = false
		}

		found, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(n.in("kubelet/" + name)))
		if err != nil {
			return err
		}

		if (len(found) > 0) != want {
			return fmt.Errorf("%w: %s is mounted: %t, not %t", errOnce, name, len(found) > 0, want)
		}
	}

	return nil
}

// down ends all uses of the volume.
func (n *onceNode) down(ctx context.Context) error {
	if n.Service == nil {
		return fmt.Errorf("%w: it is not running", errOnce)
	}

	return errors.Join(n.unpublishReader(ctx), n.unpublish(ctx), n.unstage(ctx), n.mounted(), n.close())
}

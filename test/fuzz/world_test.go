package fuzz_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/awaitcall"
	"github.com/touchstone-csi/touchstone/test/harness"
)

const volumeBytes = 4 << 20

// world is a driver, a few volumes in different states, copies of them, and what
// must not be touched.
type world struct {
	*harness.Driver

	conn *grpc.ClientConn
	base string
	// ids are the real ones of what the corpus names by tokens.
	ids map[string]string
	// seen is what the last call, and its undoing, have left.
	seen *observed
}

func newWorld(tb testing.TB) *world {
	tb.Helper()

	if os.Geteuid() != 0 {
		tb.Skip("mounting and loop devices need root")
	}

	w := &world{base: fmt.Sprintf("/tmp/touchstone-fuzz-%010d", rand.Int64N(1e10)), ids: map[string]string{}}
	require.NoError(tb, os.Mkdir(w.base, 0o755))
	tb.Cleanup(func() { require.NoError(tb, os.RemoveAll(w.base)) })
	w.furnish(tb)

	w.Driver = harness.Start(tb, func(config *driver.Config) {
		config.KubeletDir = w.real(kubelet)
		config.MaxVolumeBytes = 16 << 20
		config.Log = nil // it may log after the end of a fuzz function
	})

	conn, err := grpc.NewClient(w.Config.Endpoint, append(awaitcall.Options(tb), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, conn.Close()) })

	w.conn = conn
	require.NoError(tb, w.restore(tb.Context()))
	tb.Cleanup(func() { w.clear(tb) })

	w.seen, err = w.observe(tb.Context())
	require.NoError(tb, err)

	return w
}

// furnish makes what a path may run into.
func (w *world) furnish(tb testing.TB) {
	tb.Helper()

	in := w.real(kubelet)
	for _, directory := range []string{w.real(outside), in, in + "/full/thing"} {
		require.NoError(tb, os.MkdirAll(directory, 0o755))
	}

	for _, file := range []string{w.real(outside) + "/sentinel", in + "/file"} {
		require.NoError(tb, os.WriteFile(file, []byte("not yours"), 0o600))
	}

	require.NoError(tb, unix.Mkfifo(in+"/fifo", 0o600))
	require.NoError(tb, os.Symlink(w.real(outside), in+"/way-out"))
	require.NoError(tb, os.Symlink(w.real(outside)+"/sentinel", in+"/way-out-file"))
	require.NoError(tb, os.Symlink(in+"/nothing", in+"/dangling"))
}

// real replaces tokens by the ids of existing objects.
func (w *world) real(text string) string { return string(w.translate([]byte(text))) }

func (w *world) translate(wire []byte) []byte {
	wire = bytes.ReplaceAll(wire, []byte(base), []byte(w.base))
	for token, id := range w.ids {
		wire = bytes.ReplaceAll(wire, []byte(token), []byte(id))
	}

	return wire
}

// restore brings the volumes back to where they have to be: all but idle are
// staged, all but that and stagedOne published.
func (w *world) restore(ctx context.Context) error {
	for _, token := range []string{idle, formatted, device, directory, stagedOne} {
		if err := w.restoreVolume(ctx, token); err != nil {
			return fmt.Errorf("restore volume %s: %w", token, err)
		}
	}

	return w.restoreCopies(ctx)
}

func (w *world) restoreVolume(ctx context.Context, token string) error {
	capability, parameters := csiclient.MountCapability(writer, "ext4"), map[string]string(nil)

	switch token {
	case device:
		capability = csiclient.BlockCapability(writer)
	case directory:
		capability, parameters = csiclient.MountCapability(writer, ""), map[string]string{"backing": "directory"}
	}

	if w.ids[token] == "" {
		made, err := w.CreateVolume(ctx, &csi.CreateVolumeRequest{
			Name: token, Parameters: parameters, VolumeCapabilities: []*csi.VolumeCapability{capability},
			CapacityRange: &csi.CapacityRange{RequiredBytes: volumeBytes},
		})
		if err != nil {
			return err
		}

		w.ids[token] = made.GetVolume().GetVolumeId()
	}

	if token == idle {
		return nil
	}

	claim := &csiclient.Publication{
		VolumeID: w.ids[token], VolumeContext: parameters, Capability: capability, NodeID: harness.NodeID,
		StagingPath: w.real(staging(token)), TargetPath: w.real(pod(token)),
	}

	if err := errors.Join(w.Attach(ctx, claim), w.Stage(ctx, claim)); err != nil {
		return err
	}

	if token == stagedOne {
		return os.MkdirAll(filepath.Dir(claim.TargetPath), 0o750) // for the next publication
	}

	return w.Publish(ctx, claim)
}

// undo takes back what an accepted call has done, as a CO would.
func (w *world) undo(ctx context.Context, request, response proto.Message, before *observed) error {
	var err error

	switch r := request.(type) {
	case *csi.CreateVolumeRequest:
		made, ok := response.(*csi.CreateVolumeResponse)
		if id := made.GetVolume().GetVolumeId(); ok && !w.stands(id) {
			_, err = w.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
		}
	case *csi.DeleteVolumeRequest, *csi.ControllerExpandVolumeRequest:
		err = w.renewIdle(ctx)
	case *csi.ControllerPublishVolumeRequest:
		if r.GetVolumeId() == w.ids[idle] {
			_, err = w.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: r.GetVolumeId()})
		}
	case *csi.NodeStageVolumeRequest:
		if r.GetVolumeId() == w.ids[idle] {
			_, err = w.NodeUnstageVolume(ctx,
				&csi.NodeUnstageVolumeRequest{VolumeId: r.GetVolumeId(), StagingTargetPath: r.GetStagingTargetPath()})
			err = errors.Join(err, w.renewIdle(ctx))

			// A staging directory is the CO's to remove.
			if path := r.GetStagingTargetPath(); !before.has(path) {
				if missing := os.Remove(path); !errors.Is(missing, fs.ErrNotExist) {
					err = errors.Join(err, missing)
				}
			}
		}
	case *csi.CreateSnapshotRequest, *csi.DeleteSnapshotRequest,
		*csi.CreateVolumeGroupSnapshotRequest, *csi.DeleteVolumeGroupSnapshotRequest:
		err = w.undoCopies(ctx, request, response)
	case *csi.NodePublishVolumeRequest:
		if standing := w.ids[stagedOne]; r.GetVolumeId() == standing || r.GetTargetPath() != w.real(pod(w.token(r.GetVolumeId()))) {
			_, err = w.NodeUnpublishVolume(ctx,
				&csi.NodeUnpublishVolumeRequest{VolumeId: r.GetVolumeId(), TargetPath: r.GetTargetPath()})
		}
	}

	return errors.Join(err, w.restore(ctx))
}

// renewIdle makes the idle volume again: blank, and with its first size.
func (w *world) renewIdle(ctx context.Context) error {
	_, err := w.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: w.ids[idle]})
	w.ids[idle] = ""

	return err
}

func (w *world) stands(id string) bool { return w.token(id) != "" }

func (w *world) token(id string) string {
	for token, its := range w.ids {
		if its == id {
			return token
		}
	}

	return ""
}

func (w *world) clear(tb testing.TB) {
	tb.Helper()

	ctx := context.Background() // tb's own has ended

	w.clearCopies(ctx, tb)

	for token, id := range w.ids {
		claim := &csiclient.Publication{
			VolumeID: id, NodeID: harness.NodeID, StagingPath: w.real(staging(token)), TargetPath: w.real(pod(token)),
		}

		require.NoError(tb, w.Unpublish(ctx, claim))
		require.NoError(tb, w.Unstage(ctx, claim))
		require.NoError(tb, w.Detach(ctx, claim))

		_, err := w.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
		require.NoError(tb, err)
	}

	seen, err := w.observe(ctx)
	require.NoError(tb, err)
	require.Empty(tb, seen.Mounts, "want: no mount is left")
	require.Empty(tb, seen.Devices, "want: no device is left")
	require.Empty(tb, seen.Pool, "want: the pool is empty")
	require.Len(tb, seen.Snapshots, 1, "beside their directory itself")
	require.Empty(tb, seen.Listed, "want: no volume is listed")
}

// observed is all that a call may change.
type observed struct {
	Outside, Kubelet, Pool, Mounts, Devices []string
	// Snapshots are files that may not change, and Listed what the driver says
	// that there is.
	Snapshots, Listed []string
}

// has says whether there was something at a path beneath the kubelet's
// directory.
func (o *observed) has(path string) bool {
	return slices.ContainsFunc(o.Kubelet, func(line string) bool { return line == path || strings.HasPrefix(line, path+" ") })
}

func (w *world) observe(ctx context.Context) (*observed, error) {
	seen := &observed{}

	var failures [7]error

	mounted, err := mountinfo.GetMounts(mountinfo.PrefixFilter(w.base))
	failures[0] = err
	at := map[string]bool{}

	for _, each := range mounted {
		at[each.Mountpoint] = true
		seen.Mounts = append(seen.Mounts, each.Mountpoint+" "+each.Root+" "+each.Source+" "+each.Options)
	}

	slices.Sort(seen.Mounts)

	seen.Outside, failures[1] = tree(w.real(outside), at)
	seen.Kubelet, failures[2] = tree(w.real(kubelet), at)
	seen.Pool, failures[3] = stored(w.Pool())
	seen.Devices, failures[4] = devices(w.Pool())
	seen.Snapshots, failures[5] = tree(filepath.Join(w.Pool(), "snapshots"), nil)
	seen.Listed, failures[6] = w.listed(ctx)

	return seen, errors.Join(failures[:]...)
}

// tree lists what is beneath a directory, but not what is mounted there.
func tree(root string, mounted map[string]bool) ([]string, error) {
	var list []string

	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		if mounted[path] {
			list = append(list, path)

			return skip(entry)
		}

		var stat unix.Stat_t
		if err := unix.Lstat(path, &stat); err != nil {
			return err
		}

		line := fmt.Sprintf("%s %o %d:%d", path, stat.Mode, stat.Uid, stat.Gid)
		if !entry.IsDir() {
			line += fmt.Sprintf(" %d %d", stat.Size, stat.Mtim.Nano())
		}

		list = append(list, line)

		return nil
	})

	return list, err
}

func skip(entry fs.DirEntry) error {
	if entry.IsDir() {
		return fs.SkipDir
	}

	return nil
}

func stored(pool string) ([]string, error) {
	var list []string

	for _, room := range []string{"images", "directories", "scratch"} {
		entries, err := os.ReadDir(filepath.Join(pool, room))
		if err != nil {
			return nil, err
		}

		for _, entry := range entries {
			info, err := entry.Info()
			if err != nil {
				return nil, err
			}

			list = append(list, fmt.Sprintf("%s/%s %s", room, entry.Name(), info.Mode()))
		}
	}

	return list, nil
}

func devices(pool string) ([]string, error) {
	const blocks = "/sys/block"

	// Read on its own: a test may have made hundreds of devices that are there
	// permanently, and this is done around each call.
	directory, err := os.Open(blocks)
	if err != nil {
		return nil, err
	}
	defer directory.Close()

	names, err := directory.Readdirnames(-1)
	if err != nil {
		return nil, err
	}

	var list []string

	for _, name := range names {
		backing, err := os.ReadFile(filepath.Join(blocks, name, "loop", "backing_file"))
		if err == nil && strings.HasPrefix(string(backing), pool+"/") {
			list = append(list, name+" "+strings.TrimSpace(string(backing)))
		}
	}

	slices.Sort(list)

	return list, nil
}

// raw sends bytes as they are.
type raw struct{ encoding.CodecV2 }

func newRaw() raw { return raw{encoding.GetCodecV2(protocodec.Name)} }

// Marshal implements encoding.CodecV2.
func (r raw) Marshal(message any) (mem.BufferSlice, error) {
	if wire, ok := message.([]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(wire)}, nil
	}

	return r.CodecV2.Marshal(message)
}

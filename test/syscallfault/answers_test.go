package syscallfault_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// stripedBytes has more extents in stripes than one call of the kernel returns, and than one batch of
// the read-ahead.
const stripedBytes = 8 * mib

// question is a call that changes nothing, and its answer as text.
type question struct {
	name string
	ask  func(ctx context.Context) (string, error)
	// complete are the fewest calls that must have been made to fail, by the beginning of their key.
	complete []string
}

// answered is what a volume, two snapshots of it, and a mounted volume are asked about.
type answered struct {
	*site

	block, mounted *volume
	first, second  *snapshot
}

// TestEachResponseIsRightOrAnError: each system call of a reading call fails once. Its answer is
// the same as without the failure, or an error: a stream never ends short with success, a volume
// that cannot be observed is not NOT_FOUND, and sizes are not guessed.
func TestEachResponseIsRightOrAnError(t *testing.T) {
	namespace.NeedRoot(t)

	binary := driverBinary(t)

	for name, pool := range map[string]func(t *testing.T) string{
		"plain":   func(*testing.T) string { return "" },
		"reflink": func(t *testing.T) string { t.Helper(); return testpool.Reflink(t, poolBytes) },
	} {
		t.Run(name, func(t *testing.T) {
			a := newAnswered(t, binary, pool(t))

			for _, each := range a.questions(name == "reflink") {
				t.Run(each.name, func(t *testing.T) { a.failEach(t, each) })
			}
		})
	}
}

func newAnswered(t *testing.T, binary, pool string) *answered {
	t.Helper()

	s := newSite(t, binary, pool)
	t.Cleanup(func() { s.close(t) })
	require.NoError(t, s.start(), "%s", s.lastLog())

	a := &answered{
		site: s, first: &snapshot{name: "first"}, second: &snapshot{name: "second"},
		block:   s.newVolume(&kind{name: "block", block: true, bytes: stripedBytes}, "block"),
		mounted: s.newVolume(image("ext4", smallBytes), "mounted"),
	}

	for _, each := range []step{
		s.create(a.mounted), s.attach(a.mounted), s.stage(a.mounted), s.publish(a.mounted), a.mounted.fill(),
		s.create(a.block), s.attach(a.block), s.stage(a.block), s.publish(a.block),
		a.stripe(1, 2), s.snapshot(a.block, a.first), a.stripe(2, 4), s.snapshot(a.block, a.second),
	} {
		require.NoError(t, each.call(t.Context()), each.name)
		each.then()
	}

	// What would be written later, by the kernel, takes space of the pool.
	for _, each := range []string{a.mounted.TargetPath, a.pool} {
		require.NoError(t, harness.Syncfs(each))
	}

	return a
}

// stripe writes every so many blocks of the device.
func (a *answered) stripe(content byte, every int64) step {
	const block = 4096

	return step{name: "stripe", then: func() {}, call: func(context.Context) error {
		device, err := os.OpenFile(a.block.TargetPath, os.O_RDWR, 0)
		if err != nil {
			return err
		}

		for at := int64(0); at < stripedBytes && err == nil; at += every * block {
			_, err = device.WriteAt([]byte{content}, at)
		}

		return errors.Join(err, device.Sync(), device.Close())
	}}
}

// conditions are those that a volume without damage may have: what could not be observed is unknown.
var conditions = regexp.MustCompile(`2:"\S*(healthy|ProbeTimedOut: the last probe failed:[^"]*)"`)

// stats returns the usage, and the condition if it is not one of conditions.
func (a *answered) stats(ctx context.Context, v *volume) (string, error) {
	answer, err := a.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: v.VolumeID, VolumePath: v.TargetPath})

	return conditions.ReplaceAllString(strings.Join(strings.Fields(answer.String()), " "), ""), err
}

// ranges are the ranges of all messages of a stream, however they are split.
func ranges(stream func(yield func(csiclient.BlockMetadata, error) bool)) (string, error) {
	var all strings.Builder

	for message, err := range stream {
		if err != nil {
			return "", err
		}

		for _, each := range message.GetBlockMetadata() {
			fmt.Fprintln(&all, each.GetByteOffset(), each.GetSizeBytes())
		}
	}

	return all.String(), nil
}

func (a *answered) questions(shared bool) []question {
	mapped := []string{"ioctl+FIEMAP pool/snapshots"}
	compared := append(slices.Clone(mapped), "pread64 pool/snapshots")

	if shared {
		compared = mapped
	}

	all := []question{
		{name: "GetMetadataAllocated", complete: mapped, ask: func(ctx context.Context) (string, error) {
			return ranges(a.AllocatedBlocks(ctx, &csi.GetMetadataAllocatedRequest{SnapshotId: a.first.id}))
		}},
		{name: "GetMetadataDelta", complete: compared, ask: func(ctx context.Context) (string, error) {
			return ranges(a.ChangedBlocks(ctx, &csi.GetMetadataDeltaRequest{BaseSnapshotId: a.first.id, TargetSnapshotId: a.second.id}))
		}},
		{name: "NodeGetVolumeStats", complete: []string{"fstatfs kubelet"}, ask: func(ctx context.Context) (string, error) {
			return a.stats(ctx, a.mounted)
		}},
		{name: "NodeGetVolumeStats of a device", complete: []string{"ioctl"}, ask: func(ctx context.Context) (string, error) {
			return a.stats(ctx, a.block)
		}},
	}

	// The free space of another pool changes with the machine's.
	if shared {
		all = append(all, question{name: "GetCapacity", complete: []string{"statfs pool"}, ask: func(ctx context.Context) (string, error) {
			answer, err := a.GetCapacity(ctx, &csi.GetCapacityRequest{})

			return answer.String(), err
		}})
	}

	return all
}

// failEach asks once without a failure, and then once for each call.
func (a *answered) failEach(t *testing.T, q question) {
	t.Helper()

	right := a.once(t, q, nil, 0)

	// Something else that the driver does meanwhile is seldom in both.
	var first, second []point

	for _, points := range []*[]point{&first, &second} {
		a.injector.record(points)
		require.Equal(t, right, a.once(t, q, nil, 0), "the answer is always the same")
		a.injector.record(nil)
	}

	points := slices.DeleteFunc(first, func(p point) bool { return !slices.Contains(second, p) })

	chosen := choose(points)
	for _, key := range q.complete {
		require.True(t, slices.ContainsFunc(chosen, func(p point) bool { return strings.HasPrefix(p.key, key) }), "no call of %q in %v", key, chosen)
	}

	for _, at := range chosen {
		t.Run(fmt.Sprintf("%s#%d", at.key, at.n), func(t *testing.T) {
			got := a.once(t, q, &at, refusal(at.key))
			if got != "" {
				require.Equal(t, right, got, "the answer of a call that has succeeded")
			}

			require.Equal(t, right, a.once(t, q, nil, 0), "the answer after the failure")
		})
	}
}

// once returns the answer, and nothing after an error of an allowed code.
func (a *answered) once(t *testing.T, q question, at *point, errno syscall.Errno) string {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()

	a.injector.begin(q.name, at, errno)
	answer, err := q.ask(ctx)
	fired := a.injector.end()

	if at == nil {
		require.NoError(t, err)
	}

	if err != nil {
		require.NotEmpty(t, fired, "no call was made to fail: %v", err)
		require.NoError(t, judge(err))

		return ""
	}

	return answer
}

// refusal is an answer of the kernel that says nothing about the file: EIO would be a failed disk.
func refusal(key string) syscall.Errno {
	if strings.HasPrefix(key, "open") {
		return unix.EMFILE
	}

	return unix.ENOMEM
}

// choose returns the first two calls of each key, the one in the middle and the last one.
func choose(points []point) []point {
	last := map[string]int{}
	for _, each := range points {
		last[each.key] = each.n
	}

	return slices.DeleteFunc(slices.Clone(points), func(p point) bool {
		most := last[p.key]

		return p.n > 2 && p.n != most/2 && p.n != most
	})
}

package syscallfault_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// probePeriod is the time between two probes of all volumes.
const probePeriod = 50 * time.Millisecond

// TestEachCallOfAProbeFailsOnce has each system call of a probe fail once. The condition of a volume that
// could not be observed is unknown (ProbeTimedOut), never that something of it is missing, and it
// is healthy again with the next probe.
func TestEachCallOfAProbeFailsOnce(t *testing.T) {
	namespace.NeedRoot(t)

	p := newProbed(t)

	var points []point

	p.injector.record(&points)
	p.injector.begin("probe", nil, 0)
	p.await(t, func() bool { return p.probes() >= 3 })
	p.injector.end()
	p.injector.record(nil)

	met := map[string]bool{}

	for _, at := range points {
		// More of them are those of the next probes, or of the runtime of Go.
		if at.n > 2 || strings.Contains(at.key, "/sys/fs/cgroup") {
			continue
		}

		for _, each := range probedCalls {
			if strings.HasPrefix(at.key, each) {
				met[each] = true
			}
		}

		t.Run(fmt.Sprintf("%s#%d", at.key, at.n), func(t *testing.T) { p.fail(t, at) })
	}

	for _, each := range probedCalls {
		require.True(t, met[each], "no call of %q was made to fail", each)
	}
}

// probedCalls must be made to fail at the least, by the beginning of their key.
var probedCalls = []string{
	"statmount", "fstatfs kubelet/staging", "ioctl+LOOP_GET_STATUS64 /dev/loop", "openat2 kubelet/staging", "read /sys",
	"fstatat pool/images", "statfs pool",
}

// probed is a site with a volume of each kind, all of which are probed all the time.
type probed struct {
	*site

	volumes []*volume
}

func newProbed(t *testing.T) *probed {
	t.Helper()

	s := newSite(t, driverBinary(t), "")
	s.flags = []string{"--health-events=false", "--health-relist-period=" + probePeriod.String()}
	t.Cleanup(func() { s.close(t) })
	require.NoError(t, s.start(), "%s", s.lastLog())

	p := &probed{site: s}

	for _, k := range []*kind{
		image("ext4", smallBytes),
		{name: "block", block: true, bytes: smallBytes},
		{name: "directory", parameters: map[string]string{"backing": "directory"}, bytes: smallBytes},
	} {
		v := s.newVolume(k, k.name)

		for _, each := range []step{s.create(v), s.attach(v), s.stage(v), s.publish(v)} {
			require.NoError(t, each.call(t.Context()), "%s the %s", each.name, k.name)
			each.then()
		}

		p.volumes = append(p.volumes, v)
	}

	stored := s.newVolume(image("ext4", smallBytes), "stored")
	require.NoError(t, s.create(stored).call(t.Context()))

	p.volumes = append(p.volumes, stored)
	p.await(t, func() bool { return len(p.reasons(t)) == 0 })

	return p
}

// await polls, since no event is sent for a probe.
func (p *probed) await(t *testing.T, done func() bool) {
	t.Helper()

	for until := time.Now().Add(limit); !done(); time.Sleep(time.Millisecond) {
		require.False(t, time.Now().After(until), "waited too long for a probe; %s", p.lastLog())
	}
}

// probes returns how many probes of the directory have begun in this step, at the least.
func (p *probed) probes() int {
	p.injector.mu.Lock()
	defer p.injector.mu.Unlock()

	return p.injector.seen["fstatfs kubelet/staging/directory"]
}

// fail has the call fail, and observes the conditions until there were two more probes.
func (p *probed) fail(t *testing.T, at point) {
	t.Helper()

	p.injector.begin("probe", &at, refusal(at.key))

	var fired int

	p.await(t, func() bool {
		p.requireKnown(t)

		if fired == 0 && p.fired() {
			fired = max(1, p.probes())
		}

		return fired > 0 && p.probes() >= fired+2
	})
	require.NotEmpty(t, p.injector.end(), "want: calls of the probe were made to fail")
	p.await(t, func() bool { return len(p.requireKnown(t)) == 0 })
}

func (p *probed) fired() bool {
	p.injector.mu.Lock()
	defer p.injector.mu.Unlock()

	return p.injector.fired != ""
}

// requireKnown requires that no condition has another reason than that it is unknown.
func (p *probed) requireKnown(t *testing.T) []string {
	t.Helper()

	found := p.reasons(t)
	require.Empty(t, slices.DeleteFunc(slices.Clone(found), func(reason string) bool {
		return strings.HasSuffix(reason, ": "+string(health.ProbeTimedOut))
	}), "the conditions of volumes without damage")

	return found
}

// reasons returns the reasons of all conditions that the driver answers with.
func (p *probed) reasons(t *testing.T) []string {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()

	var all []string

	for _, v := range p.volumes {
		answer, err := p.NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: v.VolumeID})
		require.NoError(t, err)

		for _, each := range answer.GetVolumeHealth().GetHealthStatuses() {
			all = append(all, v.name+": "+each.GetReason())
		}
	}

	for abnormal, err := range p.AbnormalVolumes(ctx) {
		require.NoError(t, err)

		for _, each := range abnormal.GetHealthStatuses() {
			all = append(all, abnormal.GetVolumeId()+" in the list: "+each.GetReason())
		}
	}

	return all
}

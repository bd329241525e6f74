package probe

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/health/events"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

func TestForeignWritesAreConditions(t *testing.T) {
	t.Parallel()

	now := time.Now()
	raw := &staged.Volume{Capability: volume.Capability{Block: true}}

	for name, test := range map[string]struct {
		volume      *staged.Volume
		at, cleanAt time.Time
		replaced    bool
		want        []health.Reason
		again       bool
	}{
		"none":                   {},
		"not in use":             {at: now, want: []health.Reason{health.FilesystemErrors}},
		"an ephemeral volume":    {volume: &staged.Volume{Ephemeral: true}, at: now, want: []health.Reason{health.FilesystemErrors}},
		"clean since":            {at: now, cleanAt: now.Add(1)},
		"clean before":           {at: now, cleanAt: now.Add(-1), want: []health.Reason{health.FilesystemErrors}},
		"clean at that time":     {at: now, cleanAt: now, want: []health.Reason{health.FilesystemErrors}},
		"of another attachment":  {at: now, replaced: true},
		"a raw device":           {volume: raw, at: now, want: []health.Reason{health.IOErrors}, again: true},
		"a raw device, long ago": {volume: raw, at: now.Add(-time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := &probeState{prober: &Prober{config: Config{Monitoring: Monitoring{IOErrorHold: time.Minute}}}, volume: test.volume}
			if test.replaced {
				s.last.attached, s.attached = &Attachment{Sequence: 1}, &Attachment{Sequence: 2}
			}

			s.addForeignWrite(test.at, test.cleanAt)
			require.Equal(t, test.want, reasons(s.entries))
			require.Equal(t, test.again, s.again > 0, "want: another probe when the condition ends")
		})
	}
}

func TestWritesAreExplained(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		change             func(s *probeState)
		suspected, foreign bool
	}{
		"by another program":    {func(*probeState) {}, true, false},
		"by a growth":           {func(s *probeState) { s.growth = growth{until: time.Now().Add(time.Hour)} }, false, false},
		"with direct I/O":       {func(s *probeState) { s.device = &loop.Status{DirectIO: true} }, true, false},
		"perhaps by the device": {func(s *probeState) { s.device = &loop.Status{} }, !events.LoopWritesReported(), false},
		"of another attachment": {func(s *probeState) { s.attached = &Attachment{Number: 1, Sequence: 2} }, false, false},
		"of a raw device":       {func(s *probeState) { s.volume.Capability.Block = true }, false, true},
		"of a directory":        {func(s *probeState) { s.volume.Parameters.Backing = volume.BackingDirectory }, false, true},
		"of an ephemeral image": {func(s *probeState) { s.volume.Ephemeral = true }, false, true},
		"by a resize that this process tries": {func(s *probeState) {
			_ = s.pool.Images.Grow(s.view.id, pool.Growth{To: 2 << 20})
		}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t)
			require.NoError(t, f.first.Images.Create(f.id, 1<<20, false))
			f.observations.Attach(f.id, Attachment{Number: 1, Sequence: 1}, 0, false)
			f.observations.recordWrite(f.id, time.Now().Add(time.Second))

			s := f.inUse(f.image())
			s.pool, s.attached = f.first, &Attachment{Number: 1, Sequence: 1}
			test.change(s)
			s.explainWrites()
			require.Equal(t, test.suspected, f.suspicion() != nil, "want: a foreign write is suspicious")
			require.Equal(t, test.foreign, !f.observations.last(f.id).foreignWriteAt.IsZero(), "want: what cannot be checked is remembered")
		})
	}
}

func TestFindingsAreRememberedOnce(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	unused := f.state()
	f.config.suspect(unused.view, health.FilesystemErrors, "errors", unused.at)
	require.Nil(t, f.suspicion(), "want: a volume without a check has no filesystem here")

	s := f.inUse(f.image())
	s.prober.config.suspect(s.view, health.FilesystemErrors, "errors", s.at)
	require.Equal(t, "errors", f.suspicion().Message)

	s = f.state()
	s.prober.config.suspect(s.view, health.FilesystemErrors, "the same", s.at)
	require.Equal(t, "errors", f.suspicion().Message, "want: what is known is not written again")
	s.prober.config.suspect(s.view, health.FilesystemCorrupted, "corrupted", s.at)
	require.Equal(t, "corrupted", f.suspicion().Message, "want: the worse finding replaces the other")

	delete(f.node.inUse, f.id)
	f.checked(fsck.Result{})

	s = f.state()
	s.prober.config.suspect(s.view, health.FilesystemErrors, "unused", s.at)
	require.Equal(t, "unused", f.suspicion().Message, "want: a volume that was checked need not be in use")

	f.checked(fsck.Result{})

	s = f.inUse(f.raw())
	s.prober.config.suspect(s.view, health.FilesystemErrors, "raw", s.at)
	require.Nil(t, f.suspicion(), "want: what cannot be checked is not remembered until a check")

	f.config.Checker.Suspect(f.id, nil, fsck.Suspicion{Reason: health.FilesystemCorrupted, Message: "corrupted", At: time.Now()})

	s = &probeState{prober: f.Prober}
	s.addSuspicion(nil)
	require.Empty(t, s.entries, "want: nothing is suspected")
	s.addSuspicion(f.suspicion())
	require.Equal(t, []health.Reason{health.FilesystemCorrupted}, reasons(s.entries))
	s.addSuspicion(suspected())
	require.Len(t, s.entries, 1, "want: known damage needs no suspicion")
}

func TestRememberedIOErrors(t *testing.T) {
	t.Parallel()

	now := time.Now()

	for name, test := range map[string]struct {
		at      time.Time
		check   *fsck.Result
		another bool
		want    []health.Reason
	}{
		"none":                  {},
		"recent":                {at: now.Add(-time.Second), want: []health.Reason{health.IOErrors}},
		"over":                  {at: now.Add(-time.Minute)},
		"clean since":           {at: now.Add(-2 * time.Second), check: &fsck.Result{CleanAt: now.Add(-time.Second)}},
		"clean before":          {at: now.Add(-time.Second), check: &fsck.Result{CleanAt: now.Add(-2 * time.Second)}, want: []health.Reason{health.IOErrors}},
		"clean in the future":   {at: now.Add(-time.Second), check: &fsck.Result{CleanAt: now.Add(time.Hour)}, want: []health.Reason{health.IOErrors}},
		"of another attachment": {at: now.Add(-time.Second), another: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t)
			f.observations.set(f.id, attached(1))
			f.observations.volumeLocked(f.id).ioErrorAt = test.at

			s := f.inUse(f.image())
			s.attached = &Attachment{Number: 3, Sequence: 1}

			if test.another {
				s.attached.Sequence = 2
			}

			// A check during the probe.
			if test.check != nil {
				f.checked(*test.check)
			}

			s.addRememberedFindings()
			require.Equal(t, test.want, reasons(s.entries))
			require.Equal(t, test.want != nil, s.again > 0 && s.again <= time.Minute, "want: another probe when the condition ends")
		})
	}
}

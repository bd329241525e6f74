package access_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/pkg/node/device"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// spy is a Checker that finds every filesystem clean, and a Prober that probes nothing. It notes what is
// reported to them.
type spy struct {
	// recorded, if not nil, is called for each record of a staging.
	recorded func(what string)
	// failure is of each second check, and first of each first one and of each Forget.
	failure, first error
	notes          []string
	// numbers are those of the devices that are attached, device.None for one that was detached.
	numbers []int
	// closed counts the gates that are closed.
	closed int
}

// taken returns what was noted since the last call.
func (s *spy) taken() []string {
	notes := s.notes
	s.notes = nil

	return notes
}

func (s *spy) notef(format string, arguments ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, arguments...))
}

func (s *spy) record(what string) {
	if s.recorded != nil {
		s.recorded(what)
	}
}

// indexOf returns the position of a device among the attached ones: numbers depend on which are free.
func (s *spy) indexOf(number int) int {
	at := slices.Index(s.numbers, number)
	if at < 0 {
		at = slices.Index(s.numbers, device.None)
	}

	if at < 0 {
		at, s.numbers = len(s.numbers), append(s.numbers, number)
	}

	s.numbers[at] = number

	return at
}

func (s *spy) CheckAtStaging(_ context.Context, _ *staged.Volume, fs filesystem.Filesystem, _ string, since time.Time) (bool, error) {
	if since.IsZero() {
		s.notef("check %s", fs.Name())

		return s.first == nil, s.first
	}

	return false, s.failure
}

func (s *spy) RecordFormatted(context.Context, *staged.Volume) {
	s.notef("formatted")
	s.record("formatted")
}

func (s *spy) SetErrorCount(_ string, count uint64) {
	s.notef("error count %d", count)
	s.record("error count")
}

func (s *spy) RecordFailure(context.Context, *staged.Volume, error) { s.notef("failure") }

func (s *spy) HasRecord(string) bool { return false }

func (s *spy) Forget(string) error { return errors.Join(s.noted("forget"), s.first) }

func (s *spy) Cancel(ctx context.Context, _ string) error {
	_, limited := ctx.Deadline()

	return s.noted(fmt.Sprintf("cancel, limited %t", limited))
}

func (s *spy) noted(what string) error {
	s.notef("%s", what)

	return nil
}

func (s *spy) Attached(_ *staged.Volume, device *loop.Device, bytes int64, second bool) {
	words := []string{fmt.Sprintf("%d attached", s.indexOf(device.Number))}

	for _, each := range []struct {
		words string
		are   bool
	}{
		{"read-only", device.ReadOnly}, {"until its last user", device.AutoClear}, {"as the second", second}, {"with a wrong size", bytes != size},
	} {
		if each.are {
			words = append(words, each.words)
		}
	}

	s.notef("%s", strings.Join(words, " "))
}

func (s *spy) Detached(number int) {
	at := s.indexOf(number)
	s.notef("%d detached", at)
	s.numbers[at] = device.None
}

func (s *spy) Close(string) (reopen func()) {
	s.closed++

	return func() { s.closed-- }
}

func (s *spy) MountBusy(_ *staged.Volume, path string) { s.notef("%s busy", filepath.Base(path)) }

func (s *spy) Unmounted(_ *staged.Volume, path string) {
	if s.closed == 0 {
		s.notef("the gate is open")
	}

	s.notef("%s unmounted", filepath.Base(path))
}

func (s *spy) DeviceBusy(_ *staged.Volume, number int, sequence uint64) {
	s.notef("%d busy, sequence known %t", s.indexOf(number), sequence > 0)
}

package node

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
)

// checkStaged repairs what is safe to repair before the volume is mounted, and
// returns INTERNAL for what is not.
func (s *Service) checkStaged(ctx context.Context, use *staged.Volume, used filesystem.Filesystem, device *loop.Device) error {
	began := time.Now()

	check := used.Check
	if known, ok := s.checks.Get(use.VolumeID); ok && known.Verdict == VerdictDamaged {
		// Whoever has repaired it, or not: that it says it is clean is not enough.
		check = used.CheckAll
	}

	verdict, err := check(ctx, device.Path)
	if err == nil && verdict.State == filesystem.NeedsReplay {
		if err = replay(use, used, device); err == nil {
			verdict, err = check(ctx, device.Path)
		}
	}

	if err != nil {
		return err
	}

	s.keepStaged(ctx, use, began, verdict)

	switch verdict.State {
	case filesystem.Clean:
	case filesystem.Repaired:
		s.config.Log.Warn("a filesystem was repaired", "volume", use.VolumeID, "verdict", verdict.Detail)
	case filesystem.Damaged, filesystem.NeedsReplay:
		return rpc.Errorf(codes.Internal, "the %s is damaged and was not mounted; repair it by hand: %s",
			used.Name(), verdict.Detail)
	}

	return nil
}

// keepStaged keeps what a staging has found. The staging waits for the disk only
// where it is about to fail.
func (s *Service) keepStaged(ctx context.Context, use *staged.Volume, began time.Time, verdict filesystem.Verdict) {
	found := newStagingCheck(use, began)
	found.Verdict, found.Detail, found.Took = verdictOf(verdict.State), verdict.Detail, time.Since(began)

	s.count(found)
	s.keepCheck(ctx, found)
}

// keepFresh keeps that a filesystem was made just now, which is no check.
func (s *Service) keepFresh(ctx context.Context, use *staged.Volume) {
	found := newStagingCheck(use, time.Now())
	found.Verdict = VerdictClean

	s.keepCheck(ctx, found)
}

func newStagingCheck(u *staged.Volume, at time.Time) *Check {
	return &Check{VolumeID: u.VolumeID, Pool: u.Parameters.Pool, FSType: u.FSType(), At: at, Since: at, How: HowStage}
}

// keepUnmountable keeps that the kernel has found damage which the check has not.
func (s *Service) keepUnmountable(ctx context.Context, use *staged.Volume, began time.Time, failure error) {
	if errors.Is(failure, unix.EBADMSG) || errors.Is(failure, unix.EUCLEAN) {
		s.keepStaged(ctx, use, began, filesystem.Verdict{State: filesystem.Damaged, Detail: "it does not mount: " + failure.Error()})
	}
}

// forgive lets the errors be that the kernel had counted before the volume was
// found sound: they stay counted, with the filesystem.
func (s *Service) forgive(use *staged.Volume, number int, place *mount.Place) {
	root, err := place.OpenDir()
	if err != nil {
		return // the next look tells
	}
	defer root.Close()

	counted, err := filesystem.ReadErrors(use.FSType(), number, root)

	s.keeping.Lock()
	defer s.keeping.Unlock()

	known, ok := s.checks.Get(use.VolumeID)
	if err != nil || !ok || known.How != HowStage || counted.Count == known.Errors {
		return
	}

	forgiven := *known
	forgiven.Errors = counted.Count

	if err := s.checks.PutLazily(&forgiven); err != nil {
		s.config.Log.Error("errors of a filesystem that was found sound are told again", "volume", use.VolumeID, "error", err)
	}
}

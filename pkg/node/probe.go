package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/pool"
)

const (
	// soon is when a volume is looked at again that was just being changed.
	soon = 100 * time.Millisecond
	// later is when one is that an operation goes on for, and does not seem to harm.
	later = time.Second
)

// look is one look at a volume in use. It starts no tool, reads no data and
// writes nothing: a frozen filesystem keeps nobody waiting who only asks.
type look struct {
	sight

	service *Service
	subject subject
	use     *staged.Volume
	pool    *pool.Pool
	before  known

	// device is that of the volume, nil where none was found.
	device *loop.BasicStatus
	// root is open where something of a volume's is mounted that can be opened,
	// and point is that mount.
	root  *os.File
	point mount.Point
	// leave ends what keeps operations from unmounting it meanwhile.
	leave func()

	entries []health.Entry
	usage   *health.Usage
	again   time.Duration
	// patient is health.Observation's.
	patient bool
	// unsettled says that some of the entries may come of an operation that is
	// under way: what is mounted or attached, and with what image.
	unsettled bool
}

// probe looks at one volume, now.
func (s *Service) probe(ctx context.Context, id string) (health.Observation, error) {
	busy := s.ops.Busy(operationsOn(id))

	found, ok := s.subject(id)
	if !ok {
		if !busy {
			s.evidence.forget(id)
		}

		return health.Observation{}, health.ErrGone
	}

	l := &look{service: s, subject: found, use: found.use, before: s.evidence.of(id)}
	l.sight = sight{at: time.Now(), mounts: map[string]seen{}}

	if found.use == nil {
		return l.atRest(ctx)
	}

	if found.use.Ephemeral {
		s.evidence.named(found.use.VolumeID, id)
	}

	err := l.all(ctx)
	now, ok := s.subject(id)
	busy = busy || s.ops.Busy(operationsOn(id))

	switch {
	case !ok:
		return health.Observation{}, health.ErrGone
	case now.record != found.record, busy && (l.unsettled || err != nil), errors.Is(err, health.ErrKeep):
		return health.Observation{Again: soon}, health.ErrKeep
	case err != nil:
		return health.Observation{}, fmt.Errorf("look at volume %s: %w", id, err)
	case busy:
		l.lookAgain(later)
	}

	s.evidence.keep(id, l.sight)

	if !s.inUse(id) {
		s.evidence.forget(id)
	}

	return l.observation(), nil
}

// atRest looks at a volume that is not in use here. Who deletes one may be
// another process.
func (l *look) atRest(ctx context.Context) (health.Observation, error) {
	found, err := l.inPool(ctx)

	switch {
	case err != nil:
		return health.Observation{}, fmt.Errorf("look for volume %s: %w", l.subject.id, err)
	case !found:
		return health.Observation{}, health.ErrGone
	}

	l.told()

	return l.observation(), nil
}

func (l *look) observation() health.Observation {
	return health.Observation{Entries: l.entries, Usage: l.usage, Again: l.again, Patient: l.patient}
}

func (l *look) lookAgain(after time.Duration) {
	if l.again == 0 || after < l.again {
		l.again = after
	}
}

func (l *look) found(reason health.Reason, message string) {
	l.entries = append(l.entries, health.NewEntry(reason, message))
}

// all looks first at what can't hang, then at the pool, and last at the volume's
// own filesystem.
func (l *look) all(ctx context.Context) error {
	if err := l.service.reachable(l.use.Parameters.Pool); err != nil {
		return err
	}

	var err error
	if l.pool, err = l.service.poolOf(l.use); err != nil {
		return err
	}

	defer l.close()

	if !l.use.IsImage() {
		// All of it is the pool's.
		leave, err := l.service.gates.enter(ctx, l.use.Parameters.Pool)
		if err != nil {
			return err
		}
		defer leave()
	}

	steps := []func(context.Context) error{l.places, l.backing, l.mounted}
	if l.use.ExposesRawDevice() {
		steps = []func(context.Context) error{l.blocks, l.revoke, l.places, l.backing, l.guest}
	}

	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}

	l.told()

	return nil
}

func (l *look) close() {
	if l.root != nil {
		_ = l.root.Close() // nothing was written
	}

	if l.leave != nil {
		l.leave()
	}
}

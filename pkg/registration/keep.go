package registration

import (
	"context"
	"sync"
	"time"

	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/kernelevents"
)

// Run keeps the driver announced until ctx ends, and then takes the announcement
// back. A socket that somebody removes comes back, and after the kubelet's refusal
// it is made anew: only a new one is tried again by every kubelet, and it is what
// the restart of a node-driver-registrar comes to.
//
// What goes wrong is told the log, and tried again: the driver's volumes are in use
// whether or not the kubelet knows of it. Call it once.
func (r *Registrar) Run(ctx context.Context) {
	var watching sync.WaitGroup

	watching.Go(func() { r.watch(ctx) })
	r.keep(ctx)
	watching.Wait()

	if err := r.Close(); err != nil {
		r.config.Log.Error("the kubelet is left with a socket that nobody serves", "error", err)
	}
}

func (r *Registrar) keep(ctx context.Context) {
	pause := r.config.RetryPause
	retry := time.NewTimer(pause)
	retry.Stop()

	defer retry.Stop()

	later := func() {
		retry.Reset(pause)
		pause = min(2*pause, maxPause)
	}

	for {
		select {
		case <-ctx.Done():
			return
		case <-r.answered:
			if r.Registered() {
				retry.Stop()

				pause = r.config.RetryPause
			} else {
				later()
			}

			continue
		case <-r.changed:
			if r.listener.InPlace() {
				continue
			}
		case <-retry.C:
		}

		retry.Stop()

		if err := r.renew(ctx); err != nil && ctx.Err() == nil {
			r.config.Log.Error("the kubelet cannot see the driver", "again", pause, "error", err)
			later()
		}
	}
}

// renew replaces the socket. The kubelet forgets the driver, and registers it anew.
func (r *Registrar) renew(ctx context.Context) error {
	r.config.Log.Warn("making the registration socket anew", "socket", r.listener.Path(), "wasThere", r.listener.InPlace())
	r.registered.Store(false)

	if err := r.listener.Close(); err != nil {
		return err
	}

	return r.listen(ctx)
}

// watch signals changed when the socket may have been removed, moved or replaced.
// While the directory can't be watched it is looked at now and then.
func (r *Registrar) watch(ctx context.Context) {
	source := kernelevents.NewFiles(r.config.Directory)
	pause := r.config.RetryPause

	for {
		err := source.Run(ctx, func() {
			pause = r.config.RetryPause

			signal(r.changed) // what has happened before the watch began
		}, func(event health.Event) {
			if event.Kind == health.Lost || event.Path == r.config.socketPath() {
				signal(r.changed)
			}
		})
		if ctx.Err() != nil {
			return
		}

		r.config.Log.Warn("the directory of the kubelet's plugins is not watched", "again", pause, "error", err)
		signal(r.changed)

		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}

		pause = min(2*pause, maxPause)
	}
}

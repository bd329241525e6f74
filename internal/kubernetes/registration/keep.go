package registration

import (
	"context"
	"sync"
	"time"

	"github.com/touchstone-csi/touchstone/internal/linux/inotify"
)

// Run keeps the driver registered until ctx ends, and then removes the socket. A socket
// that is removed is created again; after a failed registration it is replaced, for
// kubelets that try no socket twice, which is also the effect of restarting a
// node-driver-registrar.
//
// Errors are logged and retried, because volumes in use do not depend on the
// registration. Call it once.
func (r *Registrar) Run(ctx context.Context) {
	var watching sync.WaitGroup

	watching.Go(func() { r.watch(ctx) })
	r.keep(ctx)
	watching.Wait()

	if err := r.Close(); err != nil {
		r.config.Log.Error("cannot remove the registration socket; the kubelet keeps a stale socket", "error", err)
	}
}

func (r *Registrar) keep(ctx context.Context) {
	refusals, failures := pauses{next: r.config.RetryPause, most: maxRetryPause}, pauses{next: r.config.RetryPause, most: maxRepairPause}
	retry := time.NewTimer(0)
	retry.Stop()

	defer retry.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case <-r.answered:
			retry.Stop()

			if r.Registered() {
				refusals.next = r.config.RetryPause
			} else {
				retry.Reset(refusals.take())
			}

			continue
		case <-r.changed:
			if r.listener.InPlace() {
				continue
			}
		case <-retry.C:
		}

		retry.Stop()

		if err := r.renew(ctx); err == nil {
			failures.next = r.config.RetryPause
		} else if ctx.Err() == nil {
			again := failures.take()
			retry.Reset(again)
			r.config.Log.Error("the kubelet cannot see the driver", "again", again, "error", err)
		}
	}
}

// pauses are of double length each time, up to most.
type pauses struct{ next, most time.Duration }

func (p *pauses) take() time.Duration {
	taken := p.next
	p.next = min(2*p.next, p.most)

	return taken
}

// renew replaces the socket. The kubelet removes the driver and registers it again.
func (r *Registrar) renew(ctx context.Context) error {
	r.config.Log.Warn("replacing the registration socket", "socket", r.listener.Path(), "existed", r.listener.InPlace())
	r.registered.Store(false)

	// If this fails, the new listener tries to remove the old socket too.
	if err := r.listener.Close(); err != nil {
		r.config.Log.Warn("the old registration socket is left", "error", err)
	}

	return r.listen(ctx)
}

// watch signals changed when the socket may have been removed, moved or replaced. While
// the directory cannot be watched it signals periodically.
func (r *Registrar) watch(ctx context.Context) {
	failures := pauses{next: r.config.RetryPause, most: maxRepairPause}

	for {
		err := inotify.Watch(ctx, inotify.Fixed(r.config.Directory), func() {
			failures.next = r.config.RetryPause

			signal(r.changed) // for changes before the watch started
		}, func(event inotify.Event) {
			if event.Kind == inotify.Lost || event.Path == r.config.socketPath() {
				signal(r.changed)
			}
		})
		if ctx.Err() != nil {
			return
		}

		again := failures.take()
		r.config.Log.Warn("the directory of the kubelet's plugins is not watched", "again", again, "error", err)
		signal(r.changed)

		select {
		case <-ctx.Done():
			return
		case <-time.After(again):
		}
	}
}

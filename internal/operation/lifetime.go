package operation

import (
	"context"
	"runtime/debug"
	"sync"
)

// Lifetime is that of work that goes on without its callers: until it is done, or until Drain
// cancels it with ErrDraining.
type Lifetime struct {
	// Running counts the work that Drain waits for.
	Running sync.WaitGroup

	base context.Context //nolint:containedctx // work lives as long as this, not as its callers
	stop context.CancelFunc
}

// NewLifetime returns one without work.
func NewLifetime() *Lifetime {
	base, stop := context.WithCancel(context.Background())

	return &Lifetime{base: base, stop: stop}
}

// Drain waits for the running work. When ctx ends first the work is cancelled, and Drain returns
// the cause of ctx's end without waiting any longer. The caller begins no more work before.
func (l *Lifetime) Drain(ctx context.Context) error {
	defer l.stop()

	return AwaitEnd(ctx, l.Running.Wait)
}

// Run does the work with the request-scoped values of a context, such as its logger, and with the
// end of l. A panic in it is returned as *PanicError.
func Run[T any](values context.Context, l *Lifetime, work func(context.Context) (T, error)) (result T, err error) {
	ctx, cancel := context.WithCancelCause(values)
	defer cancel(nil)
	defer context.AfterFunc(l.base, func() { cancel(ErrDraining) })() //nolint:contextcheck // it ends with l

	defer func() {
		if value := recover(); value != nil {
			err = &PanicError{Value: value, Stack: debug.Stack()}
		}
	}()

	return work(ctx)
}

package operation

import (
	"context"
	"runtime/debug"
)

// Await returns the result of call, or the cause of ctx's end if that comes first. It bounds a call
// that may hang in the kernel, where neither a signal nor a deadline reaches it. The call then
// continues in its goroutine, and its result is lost: a caller that has to act on a late result, as
// on a late freeze, needs a goroutine of its own. A panic of call is a *PanicError.
func Await[T any](ctx context.Context, call func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}

	results := make(chan result, 1)

	go func() {
		var got result

		defer func() {
			if value := recover(); value != nil {
				got.err = &PanicError{Value: value, Stack: debug.Stack()}
			}

			results <- got
		}()

		got.value, got.err = call()
	}()

	select {
	case got := <-results:
		return got.value, got.err
	case <-ctx.Done():
		var none T

		return none, context.Cause(ctx)
	}
}

// AwaitEnd is Await for a call without a result.
func AwaitEnd(ctx context.Context, call func()) error {
	_, err := Await(ctx, func() (struct{}, error) {
		call()

		return struct{}{}, nil
	})

	return err
}

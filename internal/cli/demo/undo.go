package demo

import "context"

// undoStack contains the reverse of every call in effect, in order.
type undoStack struct {
	undo []func(context.Context) error
}

// undoLast reverses the latest call; if that fails, the call stays on the stack.
func (u *undoStack) undoLast(ctx context.Context) error {
	last := len(u.undo) - 1
	if err := u.undo[last](ctx); err != nil {
		return err
	}

	u.undo = u.undo[:last]

	return nil
}

func (u *undoStack) undoAll(ctx context.Context) error {
	for len(u.undo) > 0 {
		if err := retryWhileAborted(ctx, u.undoLast); err != nil {
			return err
		}
	}

	return nil
}

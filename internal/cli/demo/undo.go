package demo

import "context"

// undoing holds the reverse of every call that is in effect, in order.
type undoing struct {
	undo []func(context.Context) error
}

// undoLast reverses the latest call; when that fails, it is still to be undone.
func (u *undoing) undoLast(ctx context.Context) error {
	last := len(u.undo) - 1
	if err := u.undo[last](ctx); err != nil {
		return err
	}

	u.undo = u.undo[:last]

	return nil
}

func (u *undoing) undoAll(ctx context.Context) error {
	for len(u.undo) > 0 {
		if err := patiently(ctx, u.undoLast); err != nil {
			return err
		}
	}

	return nil
}

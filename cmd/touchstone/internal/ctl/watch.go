package ctl

import (
	"bytes"
	"context"
	"io"
	"time"

	"github.com/spf13/pflag"
)

// watchPeriod is the time between two calls of --watch.
const watchPeriod = time.Second

func (s *settings) defineList(flags *pflag.FlagSet) {
	flags.Int32Var(&s.pageSize, "max-entries", 0, "ask for this many at a time (default: the driver's choice)")
	flags.BoolVarP(&s.watch, "watch", "w", false, "show it again whenever it has changed, until interrupted; --timeout does not count")
}

// watching shows something once, or with --watch again whenever it has changed, until ctx ends.
func (s *session) watching(ctx context.Context, show func(context.Context) error) error {
	if !s.watch {
		return show(ctx)
	}

	screen := &changes{to: s.out}
	s.out = screen

	for {
		err := show(ctx)

		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // what an interrupted call has written is a part
		case err != nil:
			return err
		}

		if err := screen.flush(); err != nil {
			return err
		}

		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchPeriod):
		}
	}
}

// changes collects what is written until flush, and writes it only if it differs from what was
// written before.
type changes struct {
	to     io.Writer
	now    bytes.Buffer
	before []byte
}

func (c *changes) Write(p []byte) (int, error) { return c.now.Write(p) }

func (c *changes) flush() error {
	defer c.now.Reset()

	if bytes.Equal(c.now.Bytes(), c.before) {
		return nil
	}

	c.before = bytes.Clone(c.now.Bytes())
	_, err := c.to.Write(c.before)

	return err
}

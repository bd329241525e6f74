package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Pair joins each connection that near accepts with one that far accepts, and copies the bytes of
// both until one of them ends. So a CSI server that cannot listen where its CO connects, such as the
// embedded driver of Kubernetes' csimock suite, connects to far as often as it wants to serve. Pair
// closes the listeners and all connections when ctx ends, and returns nil then.
func Pair(ctx context.Context, near, far net.Listener) error {
	group, ctx := errgroup.WithContext(ctx)
	open := &connections{open: map[net.Conn]bool{}}
	stop := context.AfterFunc(ctx, func() {
		_ = near.Close()
		_ = far.Close()

		open.close()
	})

	defer stop()

	group.Go(func() error {
		for {
			caller, err := near.Accept()
			if err != nil {
				return err
			}

			open.add(caller)

			server, err := far.Accept()
			if err != nil {
				return errors.Join(err, caller.Close())
			}

			open.add(server)
			group.Go(func() error {
				join(caller, server)
				open.remove(caller, server)

				return nil
			})
		}
	})

	err := group.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}

	return err
}

// join copies in both directions until one of the connections ends, and closes both.
func join(one, other net.Conn) {
	var copies sync.WaitGroup

	for _, each := range [][2]net.Conn{{one, other}, {other, one}} {
		copies.Go(func() {
			_, _ = io.Copy(each[0], each[1])
			_ = one.Close()
			_ = other.Close()
		})
	}

	copies.Wait()
}

// connections are those that have to be closed at the end.
type connections struct {
	mu     sync.Mutex
	open   map[net.Conn]bool
	closed bool
}

// add closes the connection once close was called.
func (c *connections) add(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.closed {
		_ = conn.Close()
	} else {
		c.open[conn] = true
	}
}

func (c *connections) remove(ended ...net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()

	for _, conn := range ended {
		delete(c.open, conn)
	}
}

func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.closed = true

	for conn := range c.open {
		_ = conn.Close()
	}
}

package ctl

import (
	"bytes"
	"io"
)

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

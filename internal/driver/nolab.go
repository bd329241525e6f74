//go:build nolab

package driver

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

func (d *Driver) openLab(prometheus.Registerer) (hooks, error) { return hooks{}, checkLab(&d.config) }

// checkLab refuses the settings of the lab.
func checkLab(c *Config) error {
	switch {
	case c.Faults != "":
		return withoutLab("faults")
	case c.EnableFaults:
		return withoutLab("enable-faults")
	case c.CallLog != "":
		return withoutLab("call-log")
	case c.Strict != "":
		return withoutLab("strict")
	default:
		return nil
	}
}

// Forward is a part of the lab.
func Forward(context.Context, Config, string) error { return withoutLab("proxy-endpoint") }

// ForwardPaired is a part of the lab.
func ForwardPaired(context.Context, Config, string) error { return withoutLab("proxy-listen") }

// CheckProxy refuses the settings of the proxy.
func (c *Config) CheckProxy(string) error { return withoutLab("proxy-endpoint and proxy-listen") }

func withoutLab(flag string) error {
	return fmt.Errorf("%w: %s: this driver was built without the lab; build it without the tag nolab", ErrConfig, flag)
}

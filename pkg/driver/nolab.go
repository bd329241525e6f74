//go:build nolab

package driver

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/pkg/health"
)

// openLab returns hooks without effect.
func (d *Driver) openLab(prometheus.Registerer) (hooks, error) {
	return hooks{
		start: func(context.Context) error { return nil }, run: func(context.Context) {}, register: func(grpc.ServiceRegistrar) {},
		reports: func() []health.FaultReport { return nil }, drain: func() {}, close: func() error { return nil },
	}, checkLab(&d.config)
}

// checkLab refuses the settings of the lab.
func checkLab(c *Config) error {
	if c.Faults != "" || c.EnableFaults || c.CallLog != "" || c.Strict != "" {
		return fmt.Errorf("%w: faults, enable-faults, call-log and strict: this driver was built without them (tag nolab)", ErrConfig)
	}

	return nil
}

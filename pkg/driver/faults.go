package driver

import (
	"context"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/touchstone-csi/touchstone/internal/lab/faults"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
	"github.com/touchstone-csi/touchstone/pkg/health"
)

// newFaults returns what injects faults, with the rules of the file; nil unless they are enabled.
func newFaults(config *Config, registry prometheus.Registerer) (*faults.Injector, error) {
	if config.Faults == "" && !config.EnableFaults {
		return nil, nil //nolint:nilnil // documented
	}

	injector := faults.New(faults.Config{NodeID: config.NodeID, Log: config.Log})
	if err := registry.Register(injector); err != nil {
		return nil, fmt.Errorf("register the metrics of fault rules: %w", err)
	}

	config.Log.Warn("fault rules are enabled: calls may fail on purpose")

	if config.Faults == "" {
		return injector, nil
	}

	if err := injector.Load(config.Faults); err != nil {
		return nil, fmt.Errorf("%w: faults: %w", ErrConfig, err)
	}

	return injector, nil
}

// Faults returns what injects faults; nil unless they are enabled.
func (d *Driver) Faults() *faults.Injector { return d.faults }

// attachFaults lets rules match by names, and conditions appear at once.
func (d *Driver) attachFaults() {
	if d.faults == nil {
		return
	}

	d.faults.Attach(func(config *faults.Config) {
		if list := d.components.names; list != nil {
			config.Names = func(kind string) []faults.Object {
				listed := list(names.Kind(kind))
				objects := make([]faults.Object, 0, len(listed))

				for _, each := range listed {
					objects = append(objects, faults.Object(each))
				}

				return objects
			}
		}

		config.ConditionsChanged = func() {
			if !d.gate.opened() {
				return // the first probes follow
			}

			for _, each := range d.components.views {
				each.monitor.SuspectAll()
			}
		}
	})
}

// hideWith lets rules hide the socket.
func (d *Driver) hideWith(hide func() (restore func(), err error)) {
	if d.faults != nil {
		d.faults.Attach(func(config *faults.Config) { config.Vanish = hide })
	}
}

// begin starts the background goroutines as components.begin does, and follows the file of rules.
func (d *Driver) begin(ctx context.Context) (wait func()) {
	if d.config.Faults == "" {
		return d.components.begin(ctx)
	}

	var following sync.WaitGroup

	following.Go(func() { d.faults.Follow(ctx, d.config.Faults) })

	others := d.components.begin(ctx)

	return func() {
		others()
		following.Wait()
	}
}

func (d *Driver) faultManifest() func() map[string]string {
	if d.faults == nil {
		return nil
	}

	return d.faults.Manifest
}

func (d *Driver) faultReports() []health.FaultReport {
	if d.faults == nil {
		return nil
	}

	return d.faults.Reports()
}

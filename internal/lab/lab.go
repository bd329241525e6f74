// Package lab tests a CO by a driver: it has calls fail by rules (faults), records them (calls), and checks
// them (strict). It acts at the hooks of the driver, which does without it: pkg/driver/lab.go fills them.
package lab

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/internal/lab/calls"
	"github.com/touchstone-csi/touchstone/internal/lab/faults"
	"github.com/touchstone-csi/touchstone/internal/lab/strict"
	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/operation"
)

// Config configures a Lab.
type Config struct {
	// Rules is a file of fault rules, empty for none; EnableFaults serves the calls that add them.
	Rules        string
	EnableFaults bool
	Faults       faults.Config
	// RecordCalls keeps the last calls, and writes them to the file of Calls if there is one.
	RecordCalls bool
	Calls       calls.Config
	// Strict checks the CO unless its mode is strict.Off.
	Strict strict.Config
	// Number returns the number of a call in the driver's log.
	Number func(context.Context) uint64
}

// Lab acts on the calls and operations of one driver.
type Lab struct {
	config Config
	// injector has the fault rules, recorder the call log, and monitor checks the CO; each is nil without
	// its setting.
	injector *faults.Injector
	recorder *calls.Recorder
	monitor  *strict.Monitor
}

// New makes what the configuration enables, opens the call log, and registers the metrics.
func New(config Config, registry prometheus.Registerer) (l *Lab, err error) {
	l = &Lab{config: config}

	if config.Rules != "" || config.EnableFaults {
		l.injector = faults.New(config.Faults)
		if err := registry.Register(l.injector); err != nil {
			return nil, fmt.Errorf("register the metrics of fault rules: %w", err)
		}

		config.Faults.Log.Warn("fault rules are enabled: calls may fail on purpose")
	}

	if config.Strict.Mode != strict.Off {
		if l.monitor, err = strict.New(config.Strict, registry); err != nil {
			return nil, err
		}
	}

	if !config.RecordCalls {
		return l, nil
	}

	if l.recorder, err = calls.New(config.Calls); err != nil {
		return nil, err
	}

	if err := registry.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "touchstone_call_log_lost_total", Help: "Calls that could not be written to the file of --call-log.",
	}, func() float64 { return float64(l.recorder.Lost()) })); err != nil {
		return nil, errors.Join(fmt.Errorf("register the metric of the call log: %w", err), l.recorder.Close())
	}

	return l, nil
}

// Load reads the file of rules.
func (l *Lab) Load() error {
	if l.config.Rules == "" {
		return nil
	}

	return l.injector.Load(l.config.Rules)
}

// Point returns what operations call at their points; nil without fault rules.
func (l *Lab) Point() operation.Hook {
	if l.injector == nil {
		return nil
	}

	return l.injector.At
}

// Conditions returns what adds conditions to volumes; nil without fault rules.
func (l *Lab) Conditions() func(view, volumeID string) []health.Entry {
	if l.injector == nil {
		return nil
	}

	return l.injector.Entries
}

// Start waits as the rules say for the start of the driver.
func (l *Lab) Start(ctx context.Context) error {
	if l.injector == nil {
		return nil
	}

	return l.injector.Start(ctx)
}

// Run follows the file of rules until ctx ends.
func (l *Lab) Run(ctx context.Context) {
	if l.config.Rules != "" {
		l.injector.Follow(ctx, l.config.Rules)
	}
}

// Register registers the services of what is enabled.
func (l *Lab) Register(server grpc.ServiceRegistrar) {
	if l.injector != nil {
		l.injector.Register(server)
	}

	if l.recorder != nil {
		l.recorder.Register(server)
	}

	if l.monitor != nil {
		l.monitor.Register(server)
	}
}

// Manifest returns the entries of GetPluginInfo that show what is enabled.
func (l *Lab) Manifest() map[string]string {
	shown := map[string]string{}

	if l.injector != nil {
		shown["faults"] = l.injector.Names()
	}

	if l.monitor != nil {
		shown["strict"] = l.config.Strict.Mode
	}

	return shown
}

// Reports describes the active rules in the health report.
func (l *Lab) Reports() []health.FaultReport {
	if l.injector == nil {
		return nil
	}

	return l.injector.Reports()
}

// HoldsResponses reports whether a response may wait after its handler has ended.
func (l *Lab) HoldsResponses() bool { return l.injector != nil }

// Drain ends the calls that rules hold, and those that follow the call log.
func (l *Lab) Drain() {
	if l.injector != nil {
		l.injector.Close()
	}

	if l.recorder != nil {
		l.recorder.Drain()
	}
}

// Close writes what is queued for the call log, and closes it.
func (l *Lab) Close() error {
	if l.recorder == nil {
		return nil
	}

	return l.recorder.Close()
}

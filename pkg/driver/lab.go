//go:build !nolab

package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/touchstone-csi/touchstone/internal/lab"
	"github.com/touchstone-csi/touchstone/internal/lab/calls"
	"github.com/touchstone-csi/touchstone/internal/lab/faults"
	"github.com/touchstone-csi/touchstone/internal/lab/strict"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
)

// openLab makes the lab that the configuration asks for.
func (d *Driver) openLab(registry prometheus.Registerer) (hooks, error) {
	config := &d.config
	settings := lab.Config{
		Rules: config.Faults, EnableFaults: config.EnableFaults,
		Faults: faults.Config{
			NodeID: config.NodeID, Names: d.namesOf, ConditionsChanged: d.conditionsChanged, Crash: config.Crash, Log: config.Log,
			Vanish: func() (restore func(), err error) { return d.hide() },
		},
		RecordCalls: config.CallLog != "",
		Calls:       calls.Config{KeepSecrets: config.CallLogSecrets, Log: config.Log},
		Strict:      strict.Config{Mode: config.Strict, NodeID: config.NodeID, Capabilities: config.capabilities, Log: config.Log},
		Number: func(ctx context.Context) uint64 {
			id, _ := ctx.Value(callKey{}).(call)

			return id.number
		},
	}

	if config.CallLog != CallLogRing {
		settings.Calls.File = config.CallLog
	}

	opened, err := lab.New(settings, registry)
	if err != nil {
		return hooks{}, err
	}

	if err := opened.Load(); err != nil {
		return hooks{}, errors.Join(fmt.Errorf("%w: faults: %w", ErrConfig, err), opened.Close())
	}

	unary, streams := opened.Interceptors()

	return hooks{
		options: opened.Options(), unary: unary, streams: streams, holdsResponses: opened.HoldsResponses(),
		point: opened.Point(), conditions: opened.Conditions(), manifest: opened.Manifest,
		start: opened.Start, run: opened.Run, register: opened.Register, reports: opened.Reports, drain: opened.Drain, close: opened.Close,
	}, nil
}

// checkLab reads the file of fault rules.
func checkLab(c *Config) error {
	if c.Faults == "" {
		return nil
	}

	if err := faults.New(faults.Config{NodeID: c.NodeID}).Load(c.Faults); err != nil {
		return fmt.Errorf("%w: faults: %w", ErrConfig, err)
	}

	return nil
}

// namesOf lists the objects of a kind, by whose names rules match.
func (d *Driver) namesOf(kind string) []faults.Object {
	if d.components.names == nil {
		return nil
	}

	listed := d.components.names(names.Kind(kind))
	objects := make([]faults.Object, 0, len(listed))

	for _, each := range listed {
		objects = append(objects, faults.Object(each))
	}

	return objects
}

// conditionsChanged probes all volumes, so that the conditions of rules appear at once.
func (d *Driver) conditionsChanged() {
	if !d.gate.opened() {
		return // the first probes follow
	}

	for _, each := range d.components.views {
		each.monitor.SuspectAll()
	}
}

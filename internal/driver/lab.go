//go:build !nolab

package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/internal/lab/calls"
	"github.com/touchstone-csi/touchstone/internal/lab/faults"
	"github.com/touchstone-csi/touchstone/internal/lab/strict"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
)

// openLab makes the parts of the lab that the configuration asks for. They are, from the outside in: the call
// log, so that it has what the CO got, the checks of the CO, which may refuse before anything else
// has an effect, and the fault rules.
func (d *Driver) openLab(registry prometheus.Registerer) (h hooks, err error) {
	for _, open := range []func(*hooks, prometheus.Registerer) error{d.openCallLog, d.openChecks, d.openFaults} {
		if err := open(&h, registry); err != nil {
			for _, closer := range h.close {
				err = errors.Join(err, closer())
			}

			return hooks{}, err
		}
	}

	return h, nil
}

func (d *Driver) openCallLog(h *hooks, registry prometheus.Registerer) error {
	if d.config.CallLog == "" {
		return nil
	}

	file := d.config.CallLog
	if file == CallLogRing {
		file = ""
	}

	recorder, err := calls.New(calls.Config{File: file, KeepSecrets: d.config.CallLogSecrets, Number: numberOf, Log: d.log})
	if err != nil {
		return err
	}

	h.parts, h.drain, h.close = append(h.parts, recorder), append(h.drain, recorder.Drain), append(h.close, recorder.Close)

	if err := registry.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "touchstone_call_log_lost_total", Help: "Calls that could not be written to the file of --call-log.",
	}, func() float64 { return float64(recorder.Lost()) })); err != nil {
		return fmt.Errorf("register the metric of the call log: %w", err)
	}

	return nil
}

func (d *Driver) openChecks(h *hooks, registry prometheus.Registerer) error {
	if d.config.Strict == strict.Off {
		return nil
	}

	monitor, err := strict.New(strict.Config{
		Mode: d.config.Strict, NodeID: d.config.NodeID, Capabilities: d.config.capabilities, Number: numberOf, Log: d.log,
	}, registry)
	if err != nil {
		return err
	}

	h.parts = append(h.parts, monitor)
	h.close = append(h.close, func() error {
		monitor.LogVerdict()

		return nil
	})

	return nil
}

func (d *Driver) openFaults(h *hooks, registry prometheus.Registerer) error {
	path := d.config.Faults
	if path == "" && !d.config.EnableFaults {
		return nil
	}

	injector := faults.New(faults.Config{
		NodeID: d.config.NodeID, Names: d.namesOf, ConditionsChanged: d.conditionsChanged, Crash: d.config.Crash, Log: d.log,
		Vanish: func() (restore func(), err error) { return d.hide() },
	})
	if err := registry.Register(injector); err != nil {
		return fmt.Errorf("register the metrics of fault rules: %w", err)
	}

	d.log.Warn("fault rules are enabled: calls may fail on purpose")

	if path != "" {
		if err := injector.Load(path); err != nil {
			return fmt.Errorf("%w: faults: %w", ErrConfig, err)
		}

		h.watches = append(h.watches, func(ctx context.Context) { injector.Follow(ctx, path) })
	}

	h.options, h.holdsResponses = append(h.options, grpc.Creds(faults.Credentials())), true
	h.parts, h.drain = append(h.parts, injector), append(h.drain, injector.Close)
	h.point, h.conditions, h.manifest, h.reports, h.start = injector.At, injector.Entries, injector.Manifest, injector.Reports, injector.Start

	return nil
}

func numberOf(ctx context.Context) uint64 {
	id, _ := ctx.Value(callKey{}).(call)

	return id.number
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
	if d.components.records == nil {
		return nil
	}

	listed := d.components.records.Names(names.Kind(kind))
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

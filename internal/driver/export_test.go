package driver

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
)

// Operations lets a test start what a drain has to wait for.
func (d *Driver) Operations() *operation.Group { return d.ops }

// ReopenPool has the pool fail, so that the next probe opens it. When it is served again, served is called.
func (d *Driver) ReopenPool(name string, served func(ctx context.Context, pool string)) {
	o := d.components.opener
	o.members[name].turn <- struct{}{}

	defer func() { <-o.members[name].turn }()

	o.services = append(slices.Clip(o.services), service{
		recoverPool: func(context.Context, *pool.Pool) error { return nil }, served: served,
	})
	o.fail(name, errStarting)
	o.members[name].failedAt = time.Time{}
}

// Services names the gRPC services that the driver registers, in order.
func (d *Driver) Services() []string { return slices.Sorted(maps.Keys(d.newServer().GetServiceInfo())) }

// ShutGate is what asks a gate that was opened and shut.
func ShutGate() func(ctx context.Context, method string) error {
	g := newGate()
	g.open()
	g.shut()

	return g.pass
}

// LabOf returns the hooks of a driver without settings of the lab, and those of none.
func LabOf(config Config) (opened, none any, err error) {
	opened, err = (&Driver{guard: &guard{}, config: config}).openLab(prometheus.NewRegistry())

	return opened, hooks{}, err
}

// CheckLimits lets a test go through every message type without a service for
// each.
func CheckLimits(message proto.Message) error { return checkLimits(message) }

// ReportBeforeReady is what the page's data are before the driver is ready.
func ReportBeforeReady() error {
	_, err := (&Driver{guard: &guard{gate: newGate()}}).reportWhenReady(context.Background())

	return err
}

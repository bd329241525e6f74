package driver

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/pkg/operation"
)

// Operations lets a test start what a drain has to wait for.
func (d *Driver) Operations() *operation.Group { return d.ops }

// Services names the gRPC services that the driver registers, in order.
func (d *Driver) Services() []string { return slices.Sorted(maps.Keys(d.newServer().GetServiceInfo())) }

// ShutGate is what asks a gate that was opened and shut.
func ShutGate() func(ctx context.Context, method string) error {
	g := newGate()
	g.open()
	g.shut()

	return g.pass
}

// CheckLimits lets a test go through every message type without a service for
// each.
func CheckLimits(message proto.Message) error { return (&limits{}).check(message) }

// NewLimits returns a check that remembers the types it has seen.
func NewLimits() func(proto.Message) error { return (&limits{}).check }

// ReportBeforeReady is what the page's data are before the driver is ready.
func ReportBeforeReady() error {
	_, err := (&Driver{gate: newGate()}).reportWhenReady(context.Background())

	return err
}

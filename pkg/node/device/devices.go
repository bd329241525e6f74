package device

import (
	"log/slog"
	"time"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/node/tuning"
)

// None is the number of no loop device.
const None = -1

// detachLimit bounds the wait for programs that have a device open.
const detachLimit = 10 * time.Second

// Events is what the attachments and detachments are reported to.
type Events interface {
	// Attached reports a new attachment. Second means that it is the second device of a
	// volume, for read-only publications.
	Attached(v *staged.Volume, device *loop.Device, imageBytes int64, second bool)
	// Detached reports that the device is about to be detached.
	Detached(number int)
	// DeviceBusy reports that the device could not be detached, because it is in use.
	DeviceBusy(v *staged.Volume, number int, sequence uint64)
}

// Config is what Devices depend on.
type Config struct {
	Pools staged.Pools
	Loops *loop.Loops
	// Volumes are the records of staged volumes, to find the devices of one again.
	Volumes  *staged.Records[*staged.Volume]
	Observer *observe.Observer
	Tuner    *tuning.Tuner
	Freezer  *freeze.Freezer
	// Assigned returns the number of the device that is assigned to a guest by the publication, false for
	// none.
	Assigned func(v *staged.Volume, publication staged.Publication) (int, bool, error)
	Events   Events
	Log      *slog.Logger
}

// Devices attaches and detaches the images of volumes. It is safe for concurrent use; the calls about
// one volume have one operation.
type Devices struct {
	config Config
	raw    *Raw
}

// New returns Devices.
func New(config Config) *Devices {
	d := &Devices{config: config}
	d.raw = newRaw(&d.config)

	return d
}

// Raw returns the devices of raw-block and direct volumes.
func (d *Devices) Raw() *Raw { return d.raw }

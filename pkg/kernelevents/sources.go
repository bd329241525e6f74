package kernelevents

import (
	"os"

	"github.com/touchstone-csi/touchstone/pkg/health"
)

// FilesystemErrors is a source of health.FilesystemError for filesystems that are marked.
type FilesystemErrors struct{ health.Source }

// NewFilesystemErrors returns the source without any mark.
func NewFilesystemErrors() *FilesystemErrors { return nil }

// Mark has the source tell of the errors of the filesystem that root is in, for
// as long as it is mounted. To mark it again costs little and changes nothing.
func (f *FilesystemErrors) Mark(root *os.File) error { return nil }

// NewMounts returns a source of health.MountsChanged for this mount namespace.
func NewMounts() health.Source { return nil }

// NewDevices returns a source of health.DeviceChanged for loop devices.
func NewDevices() health.Source { return nil }

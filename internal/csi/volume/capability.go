package volume

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
)

// ErrCapability is returned for a volume capability that no volume can have.
var ErrCapability = errdefs.New(errdefs.ErrInvalidArgument, "bad volume capability")

// ErrIncomplete is the ErrCapability of a capability without a required part.
var ErrIncomplete = fmt.Errorf("%w: incomplete", ErrCapability)

// Mode is an access mode of the CSI spec.
type Mode = csi.VolumeCapability_AccessMode_Mode

// Capability is a csi.VolumeCapability as plain, comparable data that can be
// stored.
type Capability struct {
	// Block is true for raw-block access, false for a mount.
	Block bool `json:"block,omitempty"`
	// FSType is empty for block access, and where the CO leaves the choice to
	// the volume's parameters.
	FSType string `json:"fsType,omitempty"`
	// MountFlags may hold sensitive values and are kept out of messages.
	MountFlags []string `json:"mountFlags,omitempty"`
	// MountGroup is the group id for VOLUME_MOUNT_GROUP.
	MountGroup string `json:"mountGroup,omitempty"`
	// Mode is the spec's name of the access mode.
	Mode string `json:"mode"`
}

// ParseCapability reads a capability and refuses with ErrCapability one that
// is missing a part, or has an unknown access mode or filesystem.
func ParseCapability(given *csi.VolumeCapability) (Capability, error) {
	if given == nil {
		return Capability{}, fmt.Errorf("%w: it is missing", ErrIncomplete)
	}

	capability := Capability{Mode: given.GetAccessMode().GetMode().String()}

	switch access := given.GetAccessType().(type) {
	case *csi.VolumeCapability_Block:
		capability.Block = true
	case *csi.VolumeCapability_Mount:
		capability.FSType = access.Mount.GetFsType()
		capability.MountFlags = slices.Clone(access.Mount.GetMountFlags())
		capability.MountGroup = access.Mount.GetVolumeMountGroup()
	default:
		return Capability{}, fmt.Errorf("%w: access type is missing; it must be block or mount", ErrIncomplete)
	}

	return capability, capability.Check()
}

// Check refuses an access mode that the spec does not have, with ErrIncomplete, and an unknown
// filesystem or a bad mount flag, with ErrCapability.
func (c Capability) Check() error {
	if c.AccessMode() == csi.VolumeCapability_AccessMode_UNKNOWN {
		return fmt.Errorf("%w: access mode %s; name one of the spec's modes", ErrIncomplete, c.Mode)
	}

	if c.FSType != "" && !filesystem.IsSupported(c.FSType) {
		return fmt.Errorf("%w: filesystem %q; it must be one of %s", ErrCapability, c.FSType, strings.Join(FSTypes(), ", "))
	}

	if _, err := mount.ParseFlags(c.MountFlags); err != nil {
		return fmt.Errorf("%w: %w", ErrCapability, err)
	}

	return nil
}

// MountOptions returns the mount flags, which Check has accepted.
func (c Capability) MountOptions() mount.Options {
	options, _ := mount.ParseFlags(c.MountFlags)

	return options
}

// AccessMode returns the capability's mode as the spec's enum.
func (c Capability) AccessMode() Mode {
	return Mode(csi.VolumeCapability_AccessMode_Mode_value[c.Mode])
}

// withFSType returns the capability with a default for the filesystem that it leaves open, so
// that it equals one that names the default.
func (c Capability) withFSType(byDefault string) Capability {
	if !c.Block && c.FSType == "" {
		c.FSType = byDefault
	}

	return c
}

// SELinuxContexts returns the mount flags that set SELinux contexts, "" for none.
func (c Capability) SELinuxContexts() string {
	flags := slices.DeleteFunc(mount.SplitFlags(c.MountFlags), func(flag string) bool { return !mount.IsSELinuxContext(flag) })
	slices.Sort(flags)

	return strings.Join(flags, ",")
}

// SingleNode says whether the mode allows the volume on one node at a time.
func (c Capability) SingleNode() bool { return !strings.HasPrefix(c.Mode, "MULTI_NODE_") }

// ReaderOnly says whether the mode forbids writing on every node.
func (c Capability) ReaderOnly() bool { return strings.HasSuffix(c.Mode, "_READER_ONLY") }

// SingleTarget says whether the mode allows only one publication on a node.
func (c Capability) SingleTarget() bool {
	switch c.AccessMode() {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		return true
	default:
		return false
	}
}

// MountGroupID returns the numeric group id of MountGroup. Error: ErrCapability.
func (c Capability) MountGroupID() (uint32, error) {
	const bits = 32

	group, err := strconv.ParseUint(c.MountGroup, 10, bits)
	// The kernel reads the highest one as "leave the group as it is".
	if err != nil || group == math.MaxUint32 {
		return 0, fmt.Errorf("%w: volume_mount_group %q is not the number of a group", ErrCapability, c.MountGroup)
	}

	return uint32(group), nil
}

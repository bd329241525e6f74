package volume

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
)

// Backing says what a volume is made of in its pool.
type Backing string

// The two backings.
const (
	// BackingImage is a sparse raw file, attached as a loop device: its size
	// is truly enforced.
	BackingImage Backing = "image"
	// BackingDirectory is a directory, shareable. Its size is limited where the pool's filesystem
	// can limit a directory (SizeLimit).
	BackingDirectory Backing = "directory"
)

// Backings returns both.
func Backings() []Backing { return []Backing{BackingImage, BackingDirectory} }

// HasDevice reports whether a volume has a block device of its own, which can be assigned, limited and
// opened as such, and which one node writes at a time.
func (b Backing) HasDevice() bool { return b == BackingImage }

// HasFilesystem reports whether a volume has a filesystem of its own, which is made, checked and grown,
// and not a part of its pool's.
func (b Backing) HasFilesystem() bool { return b == BackingImage }

// Provisioning says when an image takes its space from the pool.
type Provisioning string

// The two ways to provision an image.
const (
	// Thin takes space as data is written.
	Thin Provisioning = "thin"
	// Thick takes all of it at creation.
	Thick Provisioning = "thick"
)

// The parameter names of a StorageClass, which are the keys of the volume
// context too.
const (
	KeyPool         = "pool"
	KeyBacking      = "backing"
	KeyFSType       = "csi.storage.k8s.io/fstype"
	KeyProvisioning = "provisioning"
	KeyBlockSize    = "blockSize"
	KeyMkfsOptions  = "mkfsOptions"

	// ReservedPrefix starts the keys that the provisioner adds and consumes
	// itself; all of them are accepted.
	ReservedPrefix = "csi.storage.k8s.io/"
)

// The keys of the publish_context, with which the controller passes the
// attachment to the node.
const (
	// KeySlot is the attachment's number on its node.
	KeySlot = "slot"
	// KeyReadOnly is "true" for an attachment that may not be written through.
	KeyReadOnly = "readonly"
)

const (
	// DefaultPool is the pool of a volume that names none.
	DefaultPool = "default"
	// DefaultFSType is the filesystem of a volume that names none.
	DefaultFSType = filesystem.Ext4
	// DefaultBlockSize is the logical block size of a loop device, in bytes.
	DefaultBlockSize = 4096
	// SmallBlockSize is the other possible block size, in bytes; the device
	// then does buffered instead of direct I/O.
	SmallBlockSize = 512
)

// ErrParameter is returned for a parameter that is unknown or has an
// impossible value.
var ErrParameter = errdefs.New(errdefs.ErrInvalidArgument, "bad parameter")

// Parameters are the StorageClass parameters of a volume, defaults filled in.
// They fix what the volume is, so two requests with equal Parameters ask for
// the same thing.
type Parameters struct {
	Pool         string       `json:"pool"`
	Backing      Backing      `json:"backing"`
	FSType       string       `json:"fsType"`
	Provisioning Provisioning `json:"provisioning"`
	// BlockSize is in bytes.
	BlockSize int `json:"blockSize"`
	// MkfsOptions are passed to mkfs as they are, split at white space.
	MkfsOptions string `json:"mkfsOptions,omitempty"`
	// DirectAssign assigns the device to a virtual machine instead of mounting it
	// on the host.
	DirectAssign bool `json:"directAssign,omitempty"`
}

// FSTypes returns the filesystems that a volume can have.
func FSTypes() []string { return filesystem.Names() }

// ParseParameters reads CreateVolumeRequest.parameters (CSI v1.13,
// CreateVolume). A key that is neither known nor the provisioner's own is
// refused with ErrParameter and the list of known ones.
func ParseParameters(given map[string]string) (Parameters, error) {
	for _, key := range slices.Sorted(maps.Keys(given)) {
		if !IsParameter(key) {
			return Parameters{}, fmt.Errorf("%w: unknown parameter %q; known are %s",
				ErrParameter, key, strings.Join(parameterKeys, ", "))
		}
	}

	if err := CloneConsistency(given).Check(); err != nil {
		return Parameters{}, err
	}

	return ParseContext(given)
}

// Context returns the volume_context that lets a node use the volume without
// asking the controller.
func (p Parameters) Context() map[string]string {
	context := map[string]string{
		KeyPool:         p.Pool,
		KeyBacking:      string(p.Backing),
		KeyFSType:       p.FSType,
		KeyProvisioning: string(p.Provisioning),
		KeyBlockSize:    strconv.Itoa(p.BlockSize),
	}
	if p.MkfsOptions != "" {
		context[KeyMkfsOptions] = p.MkfsOptions
	}

	if p.DirectAssign {
		context[KeyDirectAssign] = valueTrue
	}

	return context
}

// CheckFSType refuses with ErrCapability a capability that names another
// filesystem than the volume has, or gets when it is first staged. Block access
// names none.
func (p Parameters) CheckFSType(wanted Capability) error {
	if wanted.FSType == "" || wanted.FSType == p.FSType {
		return nil
	}

	return fmt.Errorf("%w: fs_type is %s, but the volume was made for %s; ask for that, or for none",
		ErrCapability, wanted.FSType, p.FSType)
}

// CheckCapability refuses with ErrCapability a capability that no volume with these parameters
// has. Shared means that several nodes reach its pool.
func (p Parameters) CheckCapability(wanted Capability, shared bool) error {
	if err := p.CheckDirectAssign(wanted); err != nil {
		return err
	}

	switch {
	case wanted.Block && !p.Backing.HasDevice():
		return fmt.Errorf("%w: a directory is no block device; use backing=image for block access", ErrCapability)
	case wanted.SELinuxContexts() != "" && !p.Backing.HasFilesystem():
		return fmt.Errorf("%w: a directory is in the filesystem of its pool and can't have an SELinux context of its own (context=); "+
			"use backing=image, or leave it out, for Kubernetes by seLinuxMount: false in the CSIDriver", ErrCapability)
	case wanted.SingleNode():
		return nil
	case !shared:
		return fmt.Errorf("%w: access mode %s needs a pool that several nodes reach (--shared)", ErrCapability, wanted.Mode)
	case !wanted.ReaderOnly() && p.Backing.HasDevice():
		return fmt.Errorf("%w: access mode %s needs backing=directory: an image is written on one node at a time",
			ErrCapability, wanted.Mode)
	default:
		return nil
	}
}

var parameterKeys = []string{
	KeyBacking, KeyBlockSize, KeyConsistency, KeyFSType, KeyDirectAssign, KeyMkfsOptions, KeyPool, KeyProvisioning, KeySkipHostmount,
}

// ParameterKeys returns the keys that ParseParameters knows.
func ParameterKeys() []string { return slices.Clone(parameterKeys) }

// IsParameter reports whether ParseParameters knows the key.
func IsParameter(key string) bool {
	return slices.Contains(parameterKeys, key) || strings.HasPrefix(key, ReservedPrefix)
}

// ParseContext reads a volume_context that Context made. Keys that it does not
// know belong to the CO and are ignored.
func ParseContext(given map[string]string) (Parameters, error) {
	params := Parameters{
		Pool:         cmp.Or(given[KeyPool], DefaultPool),
		Backing:      Backing(cmp.Or(given[KeyBacking], string(BackingImage))),
		FSType:       cmp.Or(given[KeyFSType], DefaultFSType),
		Provisioning: Provisioning(cmp.Or(given[KeyProvisioning], string(Thin))),
		BlockSize:    DefaultBlockSize,
		MkfsOptions:  given[KeyMkfsOptions],
	}

	switch given[KeyBlockSize] {
	case "", "4096":
	case "512":
		params.BlockSize = SmallBlockSize
	default:
		return Parameters{}, badValue(KeyBlockSize, given[KeyBlockSize], "4096 or 512")
	}

	if err := params.Check(); err != nil {
		return Parameters{}, err
	}

	direct, err := parseDirectAssign(given)
	if err != nil || !direct {
		return params, err
	}

	return params.WithDirectAssign()
}

// Check refuses parameters that no parser returns, with ErrParameter. The options of mkfs pass: their
// list may differ between releases.
func (p Parameters) Check() error {
	switch {
	case p.Pool == "":
		return badValue(KeyPool, p.Pool, "the name of a pool")
	case !slices.Contains(Backings(), p.Backing):
		return badValue(KeyBacking, string(p.Backing), "image or directory")
	case p.Provisioning != Thin && p.Provisioning != Thick:
		return badValue(KeyProvisioning, string(p.Provisioning), "thin or thick")
	case p.Backing == BackingDirectory && p.Provisioning == Thick:
		return badValue(KeyProvisioning, string(p.Provisioning), "thin: a directory has no space of its own to reserve")
	case !filesystem.IsSupported(p.FSType):
		return badValue(KeyFSType, p.FSType, strings.Join(FSTypes(), ", "))
	case p.BlockSize != DefaultBlockSize && p.BlockSize != SmallBlockSize:
		return badValue(KeyBlockSize, strconv.Itoa(p.BlockSize), "4096 or 512")
	case p.DirectAssign && !p.Backing.HasDevice():
		return badValue(KeyDirectAssign, valueTrue, "false: a directory has no block device")
	default:
		return nil
	}
}

// CheckFound is Check for a volume that is known by its mount alone.
func (p Parameters) CheckFound() error {
	p.Pool, p.Provisioning, p.BlockSize = DefaultPool, Thin, DefaultBlockSize
	p.FSType = cmp.Or(p.FSType, DefaultFSType)

	return p.Check()
}

func badValue(key, value, want string) error {
	return fmt.Errorf("%w: %s is %q; it must be %s", ErrParameter, key, value, want)
}

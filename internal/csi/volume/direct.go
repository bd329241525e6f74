package volume

import (
	"fmt"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

const (
	// KeyDirectAssign is "true" for a volume whose block device is handed to a
	// virtual machine instead of being mounted on the host.
	KeyDirectAssign = "directAssign"
	// KeySkipHostmount is the same in the words of other drivers, and of the
	// annotation of a PersistentVolumeClaim.
	KeySkipHostmount = "skip-hostmount"

	// KeyClaimName is the name of the claim that a volume is for. The provisioner
	// sets it if it runs with --extra-create-metadata.
	KeyClaimName = ReservedPrefix + "pvc/name"
	// KeyClaimNamespace is the claim's namespace, which is set then too.
	KeyClaimNamespace = ReservedPrefix + "pvc/namespace"

	// valueTrue and valueFalse are how a StorageClass, and the kubelet, say so.
	valueTrue, valueFalse = "true", "false"
)

var (
	// ErrClaimUnreadable is returned for a claim that cannot be read until an administrator
	// corrects a setting.
	ErrClaimUnreadable = errdefs.New(errdefs.ErrFailedPrecondition, "the claim can't be read")
	// ErrClaimUnavailable is returned for a claim that may be readable in a moment.
	ErrClaimUnavailable = errdefs.New(errdefs.ErrUnavailable, "the Kubernetes API does not answer")
)

// WithDirectAssign returns the parameters of the volume that these would make if it were
// assigned directly. Error: ErrParameter, where there is no device to assign.
func (p Parameters) WithDirectAssign() (Parameters, error) {
	if !p.Backing.HasDevice() {
		return Parameters{}, fmt.Errorf("%w: %s needs %s=%s: a %s has no block device that a virtual machine could have",
			ErrParameter, KeyDirectAssign, KeyBacking, BackingImage, p.Backing)
	}

	p.DirectAssign = true

	return p, nil
}

// CheckDirectAssign refuses with ErrCapability what can't be done with a volume that
// is assigned directly: its filesystem belongs to one virtual machine, so no
// other pod on the node may mount it or have its device. Other volumes pass.
func (p Parameters) CheckDirectAssign(wanted Capability) error {
	if !p.DirectAssign {
		return nil
	}

	if wanted.Block {
		return fmt.Errorf("%w: a volume with %s is not for block access: its filesystem is mounted in the virtual machine; "+
			"ask for a mount (volumeMode: Filesystem), or leave %s out", ErrCapability, KeyDirectAssign, KeyDirectAssign)
	}

	if !wanted.SingleTarget() {
		return fmt.Errorf("%w: access mode %s, but a volume with %s is for one virtual machine alone: it must be SINGLE_NODE_WRITER, "+
			"SINGLE_NODE_SINGLE_WRITER or SINGLE_NODE_READER_ONLY; in Kubernetes, use ReadWriteOncePod (ReadWriteOnce comes as "+
			"SINGLE_NODE_MULTI_WRITER where the driver advertises that capability)", ErrCapability, wanted.Mode, KeyDirectAssign)
	}

	return nil
}

// parseDirectAssign reads the parameter by either of its names. Both may be there if
// they say the same.
func parseDirectAssign(given map[string]string) (bool, error) {
	direct, named := false, ""

	for _, key := range []string{KeyDirectAssign, KeySkipHostmount} {
		value, there := given[key]
		if !there {
			continue
		}

		if value != valueTrue && value != valueFalse {
			return false, badValue(key, value, valueTrue+" or "+valueFalse)
		}

		if named != "" && direct != (value == valueTrue) {
			return false, fmt.Errorf("%w: %s is %q and %s is %q, which contradict each other; give one of them",
				ErrParameter, named, given[named], key, value)
		}

		direct, named = value == valueTrue, key
	}

	return direct, nil
}

package volume

// KeySizeLimit is the key of the volume_context of a directory volume that has its SizeLimit.
const KeySizeLimit = "sizeLimit"

// SizeLimit is what limits a directory volume to its capacity.
type SizeLimit string

// The values of KeySizeLimit.
const (
	// SizeByQuota: a write beyond the capacity fails, unless the process evades the quota on purpose.
	// docs/directory-volumes.md says how it can, and what follows.
	SizeByQuota SizeLimit = "quota"
	// SizeNotLimited: the volume may take all free space of its pool.
	SizeNotLimited SizeLimit = "none"
)

// sizeEnforced is SizeByQuota in records of development versions before the first release.
const sizeEnforced SizeLimit = "enforced"

// Check refuses a value that is in no record of any version, with ErrParameter.
func (l SizeLimit) Check() error {
	switch l {
	case "", SizeByQuota, SizeNotLimited, sizeEnforced:
		return nil
	default:
		return badValue(KeySizeLimit, string(l), "quota or none")
	}
}

// SizeLimitOf returns SizeByQuota or SizeNotLimited.
func SizeLimitOf(limited bool) SizeLimit {
	if limited {
		return SizeByQuota
	}

	return SizeNotLimited
}

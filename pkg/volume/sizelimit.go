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

// SizeLimitOf returns SizeByQuota or SizeNotLimited.
func SizeLimitOf(limited bool) SizeLimit {
	if limited {
		return SizeByQuota
	}

	return SizeNotLimited
}

package volume

// KeySizeLimit is the key of the volume_context of a directory volume that has its SizeLimit.
const KeySizeLimit = "sizeLimit"

// SizeLimit is whether the capacity of a directory volume is enforced.
type SizeLimit string

// The values of KeySizeLimit.
const (
	// SizeEnforced: a write beyond the capacity fails.
	SizeEnforced SizeLimit = "enforced"
	// SizeNotEnforced: the volume may take all free space of its pool.
	SizeNotEnforced SizeLimit = "none"
)

// SizeLimitOf returns SizeEnforced or SizeNotEnforced.
func SizeLimitOf(enforced bool) SizeLimit {
	if enforced {
		return SizeEnforced
	}

	return SizeNotEnforced
}

package pool

import "math"

// Sellable is how many bytes a pool may still promise of which promised are
// already: its size times the overcommit less those, and never more than that
// many times what is free right now, as the filesystem may hold other things
// than volumes. It is never negative.
func (c Capacity) Sellable(overcommit float64, promised int64) int64 {
	return max(0, min(c.Unsold(overcommit, promised), times(c.Available, overcommit)))
}

// Unsold is Sellable for what has its space already. It is negative when more
// is promised than the overcommit allows.
func (c Capacity) Unsold(overcommit float64, promised int64) int64 {
	return times(c.Total, overcommit) - promised
}

func times(bytes int64, factor float64) int64 {
	product := float64(bytes) * factor
	if product >= math.MaxInt64 {
		return math.MaxInt64
	}

	return int64(product)
}

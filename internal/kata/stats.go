package kata

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
)

// volumeUsage is CSI's VolumeUsage as Kata writes it: with numbers for units, and
// without what is zero.
type volumeUsage struct {
	Available uint64 `json:"available"`
	Total     uint64 `json:"total"`
	Used      uint64 `json:"used"`
	Unit      int32  `json:"unit"`
}

const (
	unitBytes  = 1
	unitInodes = 2
)

// parseStats reads what a guest says of a filesystem; it may answer with an error
// instead. Errors are ErrNoAnswer.
func parseStats(answer []byte) (mount.Usage, error) {
	var stats struct {
		Usage []volumeUsage `json:"usage"`
	}

	if err := json.Unmarshal(answer, &stats); err != nil {
		return mount.Usage{}, fmt.Errorf("%w: it is not the expected JSON: %w", ErrNoAnswer, err)
	}

	bytes, err := amountOf(stats.Usage, unitBytes)
	if err != nil {
		return mount.Usage{}, fmt.Errorf("bytes: %w", err)
	}

	if bytes.Total == 0 {
		return mount.Usage{}, fmt.Errorf("%w: there is no total of bytes", ErrNoAnswer)
	}

	inodes, err := amountOf(stats.Usage, unitInodes)
	if err != nil {
		return mount.Usage{}, fmt.Errorf("inodes: %w", err)
	}

	return mount.Usage{Bytes: bytes, Inodes: inodes}, nil
}

// amountOf returns the one entry of a unit, and zeros where there is none: a
// filesystem without a number of inodes reports none.
func amountOf(usages []volumeUsage, unit int32) (mount.Amount, error) {
	usages = slices.DeleteFunc(slices.Clone(usages), func(each volumeUsage) bool { return each.Unit != unit })

	switch {
	case len(usages) == 0:
		return mount.Amount{}, nil
	case len(usages) > 1:
		return mount.Amount{}, fmt.Errorf("%w: there are two of them", ErrNoAnswer)
	}

	usage := usages[0]
	if usage.Total > math.MaxInt64 || usage.Used > usage.Total || usage.Available > usage.Total {
		return mount.Amount{}, fmt.Errorf("%w: %d used and %d available of %d is impossible",
			ErrNoAnswer, usage.Used, usage.Available, usage.Total)
	}

	return mount.Amount{Total: int64(usage.Total), Used: int64(usage.Used), Available: int64(usage.Available)}, nil
}

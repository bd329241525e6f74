package volume

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The names of the mutable parameters, those of a VolumeAttributesClass.
const (
	// KeyReadAheadKiB is how far the kernel reads ahead of a sequential reader.
	KeyReadAheadKiB = "readAheadKiB"
	// KeyIOScheduler is the kernel's name of the device's scheduler.
	KeyIOScheduler = "ioScheduler"
	// KeyReadBytesPerSecond and the other limits hold for each pod and node on which the volume is published; 0 is
	// no limit.
	KeyReadBytesPerSecond  = "readBytesPerSecond"
	KeyWriteBytesPerSecond = "writeBytesPerSecond"
	KeyReadIOPS            = "readIOPS"
	KeyWriteIOPS           = "writeIOPS"
	// KeyCheckPeriod is the time between two checks of the filesystem; 0 is none.
	KeyCheckPeriod = "checkPeriod"
	// OpaquePrefix begins the names of parameters that only their CO knows: they are stored, and change nothing.
	OpaquePrefix = "opaque/"
)

const (
	// readAheadStepKiB is the page size that every read-ahead is a multiple of.
	readAheadStepKiB = 4
	// maxReadAheadKiB is 1 GiB: more than that is a slip of the pen.
	maxReadAheadKiB = 1 << 20
	// minBytesPerSecond is one block: with less, one request would hold a
	// process where no signal reaches it for longer than any caller waits.
	minBytesPerSecond = 4096
)

// schedulerName refuses what can't be a name, which has up to ELV_NAME_MAX-1 bytes: it is written to the kernel
// as it is.
var schedulerName = regexp.MustCompile(`^[a-z0-9_-]{1,15}$`)

// Mutable has the parameters of a volume that can change during its lifecycle
// (CSI v1.13, ControllerModifyVolume), by name, each value in its canonical form. A Mutable is never
// changed: With returns another one.
type Mutable map[string]string

// mutableKeys are the known names in the order of messages.
var mutableKeys = []string{
	KeyCheckPeriod, KeyIOScheduler, KeyReadAheadKiB,
	KeyReadBytesPerSecond, KeyReadIOPS, KeyWriteBytesPerSecond, KeyWriteIOPS,
}

// MutableKeys returns the keys that ParseMutable knows.
func MutableKeys() []string { return slices.Clone(mutableKeys) }

// IsMutable reports whether ParseMutable knows the key.
func IsMutable(key string) bool { return slices.Contains(mutableKeys, key) }

// ParseMutable reads mutable_parameters. What is unknown or makes no sense is
// refused with ErrParameter; whether a machine can do the rest is for its node
// to say.
func ParseMutable(given map[string]string) (Mutable, error) {
	parsed := Mutable{}

	for _, key := range slices.Sorted(maps.Keys(given)) {
		value, err := canonical(key, given[key])
		if err != nil {
			return Mutable{}, err
		}

		parsed[key] = value
	}

	return parsed, nil
}

// canonical returns the canonical form of the value of a parameter.
func canonical(key, value string) (string, error) {
	switch key {
	case KeyReadBytesPerSecond, KeyWriteBytesPerSecond:
		return canonicalLimit(key, value, minBytesPerSecond, math.MaxInt64)
	case KeyReadIOPS, KeyWriteIOPS:
		// With a larger limit a kernel silently wraps around.
		return canonicalLimit(key, value, 1, math.MaxUint32)
	case KeyReadAheadKiB:
		kibibytes, err := strconv.ParseUint(value, 10, 63)
		if err != nil || kibibytes%readAheadStepKiB != 0 || kibibytes > maxReadAheadKiB {
			return "", badValue(key, value, fmt.Sprintf("a multiple of %d from 0 to %d", readAheadStepKiB, maxReadAheadKiB))
		}

		return strconv.FormatUint(kibibytes, 10), nil
	case KeyIOScheduler:
		if !schedulerName.MatchString(value) {
			return "", badValue(key, value, "a name from /sys/block/loop0/queue/scheduler, such as none or mq-deadline")
		}
	case KeyCheckPeriod:
		period, err := time.ParseDuration(value)
		if err != nil || period < 0 {
			return "", badValue(key, value, "a time such as 24h, or 0 for never")
		}

		return period.String(), nil
	default:
		if !strings.HasPrefix(key, OpaquePrefix) {
			return "", fmt.Errorf("%w: unknown mutable parameter %q; known are %s", ErrParameter, key, strings.Join(mutableKeys, ", "))
		}
	}

	return value, nil
}

func canonicalLimit(key, value string, smallest, largest uint64) (string, error) {
	limit, err := strconv.ParseUint(value, 10, 63)
	if err != nil || limit != 0 && limit < smallest || limit > largest {
		return "", badValue(key, value, fmt.Sprintf("0 for no limit, or a number from %d to %d", smallest, largest))
	}

	return strconv.FormatUint(limit, 10), nil
}

// Number returns the value of a parameter that is a number, 0 if it is not named.
func (m Mutable) Number(key string) int64 {
	number, _ := strconv.ParseInt(m[key], 10, 64) // ParseMutable has accepted it

	return number
}

// Parameters returns what ParseMutable makes m of.
func (m Mutable) Parameters() map[string]string { return merged(map[string]string{}, m) }

// With returns m with what newer names; what newer does not name stays (CSI
// v1.13: nothing follows from the absence of a key).
func (m Mutable) With(newer Mutable) Mutable { return merged(m, newer) }

// merged returns older with what newer names. It changes neither.
func merged(older, newer map[string]string) map[string]string {
	if len(newer) == 0 {
		return older
	}

	both := map[string]string{}
	maps.Copy(both, older)
	maps.Copy(both, newer)

	return both
}

// ConflictingKeys returns the names to which m and other give different values,
// in order.
func (m Mutable) ConflictingKeys(other Mutable) []string {
	var keys []string

	for _, key := range slices.Sorted(maps.Keys(m)) {
		if value, both := other[key]; both && value != m[key] {
			keys = append(keys, key)
		}
	}

	return keys
}

// Equal says whether both name the same with the same values.
func (m Mutable) Equal(other Mutable) bool { return maps.Equal(m, other) }

// IsZero says whether m names nothing.
func (m Mutable) IsZero() bool { return len(m) == 0 }

// NeedsDevice returns the first name, in order, for which a volume must have a
// block device of its own, or "".
func (m Mutable) NeedsDevice() string {
	for _, key := range slices.Sorted(maps.Keys(m)) {
		isQueue, isLimit := key == KeyReadAheadKiB || key == KeyIOScheduler, IsMutable(key) && key != KeyCheckPeriod
		if isQueue || isLimit && m[key] != "0" {
			return key
		}
	}

	return ""
}

// MarshalJSON implements json.Marshaler: the parameters as they are given.
func (m Mutable) MarshalJSON() ([]byte, error) {
	return json.Marshal(m.Parameters())
}

// UnmarshalJSON implements json.Unmarshaler.
func (m *Mutable) UnmarshalJSON(text []byte) error {
	var given map[string]string
	if err := json.Unmarshal(text, &given); err != nil {
		return fmt.Errorf("mutable parameters: %w", err)
	}

	parsed, err := ParseMutable(given)
	if err != nil {
		return err
	}

	*m = parsed

	return nil
}

package volume

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The names of the mutable parameters, those of a VolumeAttributesClass.
const (
	KeyReadAheadKiB        = "readAheadKiB"
	KeyIOScheduler         = "ioScheduler"
	KeyReadBytesPerSecond  = "readBytesPerSecond"
	KeyWriteBytesPerSecond = "writeBytesPerSecond"
	KeyReadIOPS            = "readIOPS"
	KeyWriteIOPS           = "writeIOPS"
	KeyCheckPeriod         = "checkPeriod"
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
	// maxSchedulerName is the kernel's ELV_NAME_MAX without its zero.
	maxSchedulerName = 15
)

// Mutable are the parameters of a volume that can change during its lifecycle
// (CSI v1.13, ControllerModifyVolume). What is nil or empty was never named;
// a limit of 0 is named, and means no limit. A Mutable is never changed, nor
// what its pointers point to, or its map: With returns another one.
type Mutable struct {
	// ReadAheadKiB is how far the kernel reads ahead of a sequential reader.
	ReadAheadKiB *int64
	// IOScheduler is the kernel's name of the device's scheduler.
	IOScheduler string
	// The limits hold for each pod and node on which the volume is published.
	ReadBytesPerSecond, WriteBytesPerSecond, ReadIOPS, WriteIOPS *int64
	// CheckPeriod is the time between two checks of the filesystem; 0 is none.
	CheckPeriod *time.Duration
	// Opaque are the parameters whose names begin with OpaquePrefix.
	Opaque map[string]string
}

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
	var parsed Mutable

	for _, key := range sortedKeys(given) {
		if err := parseMutableKey(&parsed, key, given[key]); err != nil {
			return Mutable{}, err
		}
	}

	return parsed, nil
}

func parseMutableKey(m *Mutable, key, value string) (err error) {
	switch key {
	case KeyReadAheadKiB:
		m.ReadAheadKiB, err = parseReadAhead(value)
	case KeyIOScheduler:
		m.IOScheduler, err = value, checkScheduler(value)
	case KeyReadBytesPerSecond:
		m.ReadBytesPerSecond, err = parseLimit(key, value, minBytesPerSecond, math.MaxInt64)
	case KeyWriteBytesPerSecond:
		m.WriteBytesPerSecond, err = parseLimit(key, value, minBytesPerSecond, math.MaxInt64)
	case KeyReadIOPS:
		m.ReadIOPS, err = parseLimit(key, value, 1, math.MaxUint32)
	case KeyWriteIOPS:
		m.WriteIOPS, err = parseLimit(key, value, 1, math.MaxUint32)
	case KeyCheckPeriod:
		m.CheckPeriod, err = parsePeriod(value)
	default:
		if !strings.HasPrefix(key, OpaquePrefix) {
			return fmt.Errorf("%w: unknown mutable parameter %q; known are %s", ErrParameter, key, strings.Join(mutableKeys, ", "))
		}

		m.Opaque = merged(m.Opaque, map[string]string{key: value})
	}

	return err
}

// parseLimit reads a limit. The largest of IOPS is where a kernel silently
// wraps around.
func parseLimit(key, value string, smallest, largest int64) (*int64, error) {
	limit, err := strconv.ParseUint(value, 10, 63)
	if err != nil || limit != 0 && int64(limit) < smallest || int64(limit) > largest {
		return nil, badValue(key, value, fmt.Sprintf("0 for no limit, or a number from %d to %d", smallest, largest))
	}

	return new(int64(limit)), nil
}

func parseReadAhead(value string) (*int64, error) {
	kibibytes, err := strconv.ParseUint(value, 10, 63)
	if err != nil || kibibytes%readAheadStepKiB != 0 || kibibytes > maxReadAheadKiB {
		return nil, badValue(KeyReadAheadKiB, value, fmt.Sprintf("a multiple of %d from 0 to %d", readAheadStepKiB, maxReadAheadKiB))
	}

	return new(int64(kibibytes)), nil
}

// checkScheduler refuses what can't be a name: it is written to the kernel as
// it is.
func checkScheduler(name string) error {
	odd := func(r rune) bool { return r != '-' && r != '_' && (r < 'a' || r > 'z') && (r < '0' || r > '9') }
	if name == "" || len(name) > maxSchedulerName || strings.ContainsFunc(name, odd) {
		return badValue(KeyIOScheduler, name, "a name from /sys/block/loop0/queue/scheduler, such as none or mq-deadline")
	}

	return nil
}

func parsePeriod(value string) (*time.Duration, error) {
	period, err := time.ParseDuration(value)
	if err != nil || period < 0 {
		return nil, badValue(KeyCheckPeriod, value, "a time such as 24h, or 0 for never")
	}

	return &period, nil
}

// Parameters returns what ParseMutable makes m of, each value in the one form
// that it has.
func (m Mutable) Parameters() map[string]string {
	parameters := merged(map[string]string{}, m.Opaque)

	if m.IOScheduler != "" {
		parameters[KeyIOScheduler] = m.IOScheduler
	}

	if m.CheckPeriod != nil {
		parameters[KeyCheckPeriod] = m.CheckPeriod.String()
	}

	for key, value := range map[string]*int64{
		KeyReadAheadKiB:       m.ReadAheadKiB,
		KeyReadBytesPerSecond: m.ReadBytesPerSecond, KeyWriteBytesPerSecond: m.WriteBytesPerSecond,
		KeyReadIOPS: m.ReadIOPS, KeyWriteIOPS: m.WriteIOPS,
	} {
		if value != nil {
			parameters[key] = strconv.FormatInt(*value, 10)
		}
	}

	return parameters
}

// With returns m with what newer names; what newer does not name stays (CSI
// v1.13: nothing follows from the absence of a key).
func (m Mutable) With(newer Mutable) Mutable {
	return Mutable{
		ReadAheadKiB:        cmp.Or(newer.ReadAheadKiB, m.ReadAheadKiB),
		IOScheduler:         cmp.Or(newer.IOScheduler, m.IOScheduler),
		ReadBytesPerSecond:  cmp.Or(newer.ReadBytesPerSecond, m.ReadBytesPerSecond),
		WriteBytesPerSecond: cmp.Or(newer.WriteBytesPerSecond, m.WriteBytesPerSecond),
		ReadIOPS:            cmp.Or(newer.ReadIOPS, m.ReadIOPS),
		WriteIOPS:           cmp.Or(newer.WriteIOPS, m.WriteIOPS),
		CheckPeriod:         cmp.Or(newer.CheckPeriod, m.CheckPeriod),
		Opaque:              merged(m.Opaque, newer.Opaque),
	}
}

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
	ours, theirs := m.Parameters(), other.Parameters()

	maps.DeleteFunc(theirs, func(key, value string) bool {
		has, both := ours[key]

		return !both || has == value
	})

	return slices.Sorted(maps.Keys(theirs))
}

// Equal says whether both name the same with the same values.
func (m Mutable) Equal(other Mutable) bool { return maps.Equal(m.Parameters(), other.Parameters()) }

// IsZero says whether m names nothing.
func (m Mutable) IsZero() bool { return reflect.ValueOf(m).IsZero() }

// NeedsDevice returns the first name, in order, for which a volume must have a
// block device of its own, or "".
func (m Mutable) NeedsDevice() string {
	needing := m.Parameters()
	maps.DeleteFunc(needing, func(key, value string) bool {
		isLimit := key != KeyReadAheadKiB && key != KeyIOScheduler

		return key == KeyCheckPeriod || !IsMutable(key) || isLimit && value == "0"
	})

	if len(needing) == 0 {
		return ""
	}

	return slices.Sorted(maps.Keys(needing))[0]
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

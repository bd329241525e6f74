// Package quantity parses sizes as Kubernetes and people write them: 4096, 64Mi, 1.5GiB, 10G, 10GB, 1e9.
package quantity

import (
	"errors"
	"math"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

var (
	// ErrSyntax is returned for text that is no quantity.
	ErrSyntax = errors.New("is not a size such as 10Gi, 10GiB, 10G or 4096")
	// ErrRange is returned for a quantity that is larger than an int64.
	ErrRange = errors.New("is more than CSI can say")
)

// syntax restricts resource.ParseQuantity: it takes seconds and gigabytes for an exponent of many
// digits. Parse removes a B after a prefix of bytes before.
var syntax = regexp.MustCompile(`^[+-]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})([numkKMGTPE]i?|[eE][+-]?[0-9]{1,2})?$`)

// inBytes is the end of a quantity with its unit.
var inBytes = regexp.MustCompile(`(k|[MGTPE]|[KMGTPE]i)B$`)

// Parse returns a quantity, rounded away from zero. Errors: ErrSyntax; ErrRange, for a number that an
// int64 does not hold.
func Parse(text string) (int64, error) {
	text = inBytes.ReplaceAllString(text, "$1")

	if !syntax.MatchString(text) {
		return 0, ErrSyntax
	}

	// Of a negative quantity of more than 18 digits, and of -1Ei, Quantity.Value returns another number.
	text, negative := strings.CutPrefix(text, "-")

	parsed, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, ErrSyntax
	}

	// ParseQuantity makes the largest number of a larger one, so that this one is not known.
	if parsed.CmpInt64(math.MaxInt64) >= 0 {
		return 0, ErrRange
	}

	if negative {
		return -parsed.Value(), nil
	}

	return parsed.Value(), nil
}

// ParseSize returns a quantity that is not negative. Errors: ErrSyntax, also for a negative one; ErrRange.
func ParseSize(text string) (int64, error) {
	size, err := Parse(text)
	if size < 0 {
		return 0, ErrSyntax
	}

	return size, err
}

package mount

import (
	"os"
	"strconv"
)

// ReadMountinfo makes places observe as on a kernel without statmount.
func ReadMountinfo(places *Places) { places.observer = &observer{} }

// ReadsStatmount says whether this kernel's statmount is in use.
func ReadsStatmount(places *Places) bool { return places.observer.statmount }

// ListFromMountinfo is List on a kernel without statmount.
func ListFromMountinfo() ([]Point, error) { return (&observer{}).list() }

// ParentPath is where the opened parent is now, as the kernel says.
func ParentPath(place *Place) (string, error) {
	return os.Readlink("/proc/self/fd/" + strconv.Itoa(place.dir()))
}

// WithoutValues is what is left of a kernel's message.
func WithoutValues(options Options, text string) string { return options.withoutValues(text) }

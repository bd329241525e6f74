package mount

import (
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// seLinuxKeys are the flags with which the files of a filesystem have their SELinux contexts from its mount. All
// mounts of it need the same ones.
var seLinuxKeys = []string{"context", "fscontext", "defcontext", "rootcontext"}

// IsSELinuxContext reports whether the flag sets an SELinux context of the filesystem.
func IsSELinuxContext(flag string) bool {
	key, _, _ := strings.Cut(flag, "=")

	return slices.Contains(seLinuxKeys, key)
}

// mountSELinux is mountDetached, with another way to give contexts to a btrfs: before Linux 6.8 it refuses with
// EINVAL those that fsconfig has parsed, and parses itself what it gets as text.
func mountSELinux(device, fsType string, opts Options) (*Detached, error) {
	tree, err := mountDetached(device, fsType, opts)
	if fsType != "btrfs" || !errors.Is(err, unix.EINVAL) {
		return tree, err
	}

	text, found := opts.contextsAsText()
	if !found {
		return nil, err
	}

	if tree, textErr := mountDetached(device, fsType, text); textErr == nil {
		return tree, nil
	}

	return nil, err
}

// contextsAsText returns the options with each context as flags without a value: fsconfig joins all flags with
// commas and takes none inside of one. It reports whether there is one.
func (o Options) contextsAsText() (text Options, found bool) {
	parameters := o.parameters
	o.parameters = nil

	for _, each := range parameters {
		if !IsSELinuxContext(each.key) {
			o.parameters = append(o.parameters, each)

			continue
		}

		found = true

		for part := range strings.SplitSeq(each.key+`="`+each.value+`"`, ",") {
			o.parameters = append(o.parameters, parameter{key: part})
		}
	}

	return o, found
}

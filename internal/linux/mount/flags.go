package mount

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxParameterBytes is what fsconfig takes of a key or a value.
const maxParameterBytes = 255

// Options are mount flags in the kernel's terms. The zero value asks for nothing
// in particular. Printed, they show names and no values.
type Options struct {
	// set and clear are MOUNT_ATTR_* of the mount.
	set, clear uint64
	// parameters are the filesystem's, in the order given.
	parameters []parameter
}

type parameter struct {
	key, value string
	hasValue   bool
}

// ParseFlags reads mount flags as mount(8) spells them: "noatime", "data=ordered",
// or several with commas between, where quotes protect a comma. Of contradicting
// flags the last one counts. What is not of the mount itself goes to the
// filesystem, which may refuse it when it is mounted.
//
// ErrMountFlag is returned for flags that would do something else than mount this
// one volume (bind, remount, propagation, a loop or another device). mount(8)'s
// own remarks (defaults, nofail, _netdev, x-…) are ignored.
func ParseFlags(flags []string) (Options, error) {
	var options Options

	for _, flag := range flags {
		if flag == "" {
			return Options{}, fmt.Errorf("%w: an empty one", ErrMountFlag)
		}

		if strings.ContainsRune(flag, 0) {
			return Options{}, fmt.Errorf("%w: one with a NUL in it", ErrMountFlag)
		}

		single := splitOptions(flag)
		if len(single) == 0 {
			return Options{}, fmt.Errorf("%w: commas only", ErrMountFlag)
		}

		for _, flag := range single {
			var err error
			if options, err = options.withFlag(flag); err != nil {
				return Options{}, err
			}
		}
	}

	return options, nil
}

// SplitFlags returns what ParseFlags would read, one by one and as it is spelled,
// for another program to mount with. mount(8)'s own remarks are left out.
func SplitFlags(flags []string) []string {
	var single []string

	for _, flag := range flags {
		for _, flag := range splitOptions(flag) {
			if key, _, _ := strings.Cut(flag, "="); !isUserspaceOption(key) {
				single = append(single, flag)
			}
		}
	}

	return single
}

// ReadOnly says whether "ro" was asked for.
func (o Options) ReadOnly() bool { return o.set&unix.MOUNT_ATTR_RDONLY != 0 }

// WithReadOnly returns the same options with "ro" as the last flag.
func (o Options) WithReadOnly() Options {
	return o.withAttribute(attribute{set: unix.MOUNT_ATTR_RDONLY})
}

// WithoutDevices returns the same options with "nodev", unless they say "dev".
func (o Options) WithoutDevices() Options {
	if o.clear&unix.MOUNT_ATTR_NODEV != 0 {
		return o
	}

	return o.withAttribute(attribute{set: unix.MOUNT_ATTR_NODEV})
}

// PanicsOnError reports whether an error of the filesystem is to halt the machine.
func (o Options) PanicsOnError() bool {
	return slices.ContainsFunc(o.parameters, func(p parameter) bool {
		return (p.key == errorsKey || p.key == "fatal_errors") && p.value == "panic"
	})
}

// errorsKey is ext4's option for what it does after an error.
const errorsKey = "errors"

// withSafeErrors returns the options with those added that an image must not choose: the superblock
// of an ext4 says what follows an error, such as a panic, unless the mount does. An xfs has nothing
// like it in the image, a btrfs only as a mount option.
func (o Options) withSafeErrors(fsType string) Options {
	given := slices.ContainsFunc(o.parameters, func(p parameter) bool { return p.key == errorsKey })
	if fsType == "ext4" && !given {
		o.parameters = append(slices.Clip(o.parameters), parameter{key: errorsKey, value: "remount-ro", hasValue: true})
	}

	return o
}

// String names the flags; values may be sensitive and are left out.
func (o Options) String() string {
	names := attributeNames(o.set)
	for _, parameter := range o.parameters {
		names = append(names, parameter.key)
	}

	return strings.Join(names, ",")
}

// GoString is String, so that %#v shows no value either.
func (o Options) GoString() string { return "mount.Options(" + o.String() + ")" }

// withFlag returns the options with one more flag.
func (o Options) withFlag(flag string) (Options, error) {
	key, value, hasValue := strings.Cut(flag, "=")
	attribute, known := attributes[key]

	switch {
	case key == "":
		return Options{}, fmt.Errorf("%w: one without a name before the \"=\"", ErrMountFlag)
	case len(key) > maxParameterBytes:
		return Options{}, fmt.Errorf("%w %s: its name has %d bytes and the kernel takes %d",
			ErrMountFlag, quote(key), len(key), maxParameterBytes)
	case len(value) > maxParameterBytes:
		return Options{}, fmt.Errorf("%w %s: its value has %d bytes and the kernel takes %d",
			ErrMountFlag, quote(key), len(value), maxParameterBytes)
	case isUserspaceOption(key):
		return o, nil
	case forbiddenReason(key) != "":
		return Options{}, fmt.Errorf("%w %s: %s; leave it out", ErrMountFlag, quote(key), forbiddenReason(key))
	case known && hasValue:
		return Options{}, fmt.Errorf("%w %s: it takes no value", ErrMountFlag, quote(key))
	case known:
		return o.withAttribute(attribute), nil
	}

	// The quotes are for the commas; the kernel takes a value as it is.
	if length := len(value); length > 1 && value[0] == '"' && value[length-1] == '"' {
		value = value[1 : length-1]
	}

	// Clipped, so that options never share what is appended.
	o.parameters = append(slices.Clip(o.parameters), parameter{key: key, value: value, hasValue: hasValue})

	return o, nil
}

// attribute is a flag of the mount itself: bits to clear first, then to set.
type attribute struct{ clear, set uint64 }

func (o Options) withAttribute(a attribute) Options {
	o.set = o.set&^a.clear | a.set
	o.clear = o.clear&^a.set | a.clear

	return o
}

// attributes are the flags of the mount itself.
var attributes = map[string]attribute{
	"ro":          {set: unix.MOUNT_ATTR_RDONLY},
	"rw":          {clear: unix.MOUNT_ATTR_RDONLY},
	"nosuid":      {set: unix.MOUNT_ATTR_NOSUID},
	"suid":        {clear: unix.MOUNT_ATTR_NOSUID},
	"nodev":       {set: unix.MOUNT_ATTR_NODEV},
	"dev":         {clear: unix.MOUNT_ATTR_NODEV},
	"noexec":      {set: unix.MOUNT_ATTR_NOEXEC},
	"exec":        {clear: unix.MOUNT_ATTR_NOEXEC},
	"nodiratime":  {set: unix.MOUNT_ATTR_NODIRATIME},
	"diratime":    {clear: unix.MOUNT_ATTR_NODIRATIME},
	"nosymfollow": {set: unix.MOUNT_ATTR_NOSYMFOLLOW},
	"symfollow":   {clear: unix.MOUNT_ATTR_NOSYMFOLLOW},
	"noatime":     {clear: unix.MOUNT_ATTR__ATIME, set: unix.MOUNT_ATTR_NOATIME},
	"strictatime": {clear: unix.MOUNT_ATTR__ATIME, set: unix.MOUNT_ATTR_STRICTATIME},
	// These mean the kernel's default, which has no bit.
	"atime":         {clear: unix.MOUNT_ATTR__ATIME},
	"relatime":      {clear: unix.MOUNT_ATTR__ATIME},
	"norelatime":    {clear: unix.MOUNT_ATTR__ATIME},
	"nostrictatime": {clear: unix.MOUNT_ATTR__ATIME},
}

// isUserspaceOption knows what mount(8) keeps to itself.
func isUserspaceOption(flag string) bool {
	switch flag {
	case "defaults", "auto", "noauto", "nofail", "_netdev", "comment", "silent", "loud":
		return true
	default:
		return strings.HasPrefix(flag, "x-")
	}
}

// forbiddenReason returns why a flag is refused, or "".
func forbiddenReason(flag string) string {
	switch flag {
	case "bind", "rbind", "move", "remount":
		return "it asks for something else than a mount"
	case "shared", "rshared", "private", "rprivate", "slave", "rslave", "unbindable", "runbindable":
		return "propagation is the container runtime's business"
	case "loop", "offset", "sizelimit", "encryption":
		return "the driver attaches loop devices itself"
	case "source", "device", "journal_dev", "journal_path", "logdev", "rtdev":
		return "a volume is on its own device and on no other"
	}

	if strings.HasPrefix(flag, "X-") {
		return "it asks mount(8) to do something, and mount(8) is not used"
	}

	return ""
}

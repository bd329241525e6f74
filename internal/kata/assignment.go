package kata

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
)

const (
	// PluginFile is the name of the file in a target path that says CSIPlugin.
	PluginFile = "csiPlugin.json"

	// volumeType and pluginType both say that the device is a block device, in
	// Kata's words and in the older ones.
	volumeType = "directvol"
	pluginType = "block"

	groupKey       = "fsGroup"
	groupPolicyKey = "fsGroupChangePolicy"
	// onRootMismatch is how the driver gives volumes to a group on the host, too.
	onRootMismatch = "OnRootMismatch"
)

// Assignment is what a guest needs to mount a volume.
type Assignment struct {
	// TargetPath is where the volume is published. Runtimes know it by this path.
	TargetPath string
	// Device is the block device, as a path of the host.
	Device string
	// FSType is the filesystem on the device.
	FSType string
	// Options are mount flags, for the guest's mount; with "ro" the device is given
	// read-only. What means something on the host only is left out of the files: a
	// bind, a context of SELinux, mount(8)'s own remarks.
	Options []string
	// Group is the gid that the guest gives the volume's root to, or "".
	Group string
}

// mountInfo has its fields in the order in which Kata writes them.
type mountInfo struct {
	VolumeType string            `json:"volume-type"`
	Device     string            `json:"device"`
	FSType     string            `json:"fstype"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	Options    []string          `json:"options,omitempty"`
}

type csiPlugin struct {
	Device     string `json:"device,omitempty"`
	VolumeType string `json:"volumeType,omitempty"`
	TargetPath string `json:"targetPath,omitempty"`
	FSType     string `json:"fsType,omitempty"`
	Options    string `json:"options,omitempty"`
}

// CSIPlugin returns the content of csiPlugin.json. ErrInvalidAssignment is returned for
// what could not be mounted.
func (a Assignment) CSIPlugin() ([]byte, error) {
	if err := a.check(); err != nil {
		return nil, err
	}

	return json.Marshal(csiPlugin{
		Device:     a.Device,
		VolumeType: pluginType,
		TargetPath: filepath.Clean(a.TargetPath),
		FSType:     a.FSType,
		Options:    strings.Join(guestOptions(a.Options), ","),
	})
}

// MountInfo returns the content of mountInfo.json. ErrInvalidAssignment is returned for
// what could not be mounted.
func (a Assignment) MountInfo() ([]byte, error) {
	if err := a.check(); err != nil {
		return nil, err
	}

	info := mountInfo{VolumeType: volumeType, Device: a.Device, FSType: a.FSType, Options: guestOptions(a.Options)}
	if a.Group != "" {
		info.Metadata = map[string]string{groupKey: a.Group, groupPolicyKey: onRootMismatch}
	}

	return json.Marshal(info)
}

func (a Assignment) check() error {
	if _, err := entryName(a.TargetPath); err != nil {
		return err
	}

	if !filepath.IsAbs(a.Device) || !isText(a.Device) {
		return fmt.Errorf("%w: the device of %s is %q; name it by its absolute path", ErrInvalidAssignment, a.TargetPath, a.Device)
	}

	if a.FSType == "" || !isText(a.FSType) {
		return fmt.Errorf("%w: the filesystem of %s is %q; name one", ErrInvalidAssignment, a.TargetPath, a.FSType)
	}

	if _, err := strconv.ParseUint(a.Group, 10, 32); err != nil && a.Group != "" {
		return fmt.Errorf("%w: the group of %s is %q; name it by its gid", ErrInvalidAssignment, a.TargetPath, a.Group)
	}

	if !isText(strings.Join(a.Options, ",")) {
		return fmt.Errorf("%w: a mount flag of %s is no text; leave it out", ErrInvalidAssignment, a.TargetPath)
	}

	return nil
}

// isText says whether JSON and the kernel can both hold it as it is.
func isText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// guestOptions returns each flag on its own: Kata gives the device read-only only
// for one that is "ro" and nothing more, and the guest's agent hands what it
// doesn't know to the filesystem, which then refuses the mount.
func guestOptions(flags []string) []string {
	single := mount.SplitFlags(flags)
	options := make([]string, 0, len(single))

	for i, flag := range single {
		key, _, _ := strings.Cut(flag, "=")
		// A guest has an SELinux policy of its own, or none.
		hostOnly := key == "bind" || key == "rbind" || mount.IsSELinuxContext(key)
		// Of contradicting flags the last one counts, so the last of its kind stays.
		if !hostOnly && !slices.Contains(single[i+1:], flag) {
			options = append(options, flag)
		}
	}

	return options
}

// entryName returns the name of the directory in which Kata finds the assignment of a path.
func entryName(targetPath string) (string, error) {
	if !filepath.IsAbs(targetPath) || !isText(targetPath) {
		return "", fmt.Errorf("%w: the target path is %q; name an absolute one", ErrInvalidAssignment, targetPath)
	}

	name := base64.URLEncoding.EncodeToString([]byte(filepath.Clean(targetPath)))
	if len(name) > unix.NAME_MAX {
		return "", fmt.Errorf("%w: the target path %q has %d bytes; Kata finds none of more than %d",
			ErrInvalidAssignment, targetPath, len(targetPath), base64.URLEncoding.DecodedLen(unix.NAME_MAX/4*4))
	}

	return name, nil
}

// targetPathOf is the other way round.
func targetPathOf(entryName string) (string, bool) {
	path, err := base64.URLEncoding.Strict().DecodeString(entryName)

	// The decoder passes over line ends, and the same path must not have two entries.
	return string(path), err == nil && len(path) > 0 && base64.URLEncoding.EncodeToString(path) == entryName
}

// parseMountInfo reads as much as there is to read: the file may be by another
// driver, for another type of volume. The bool is false for what is no object.
func parseMountInfo(text []byte) (Assignment, bool) {
	var info struct {
		Device   string         `json:"device"`
		FSType   string         `json:"fstype"`
		Metadata map[string]any `json:"metadata"`
		Options  []string       `json:"options"`
	}

	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return Assignment{}, false
	}

	// A field of another type than Kata's leaves the others readable.
	if err := json.Unmarshal(text, &info); err != nil {
		if _, ok := errors.AsType[*json.UnmarshalTypeError](err); !ok {
			return Assignment{}, false
		}
	}

	group, _ := info.Metadata[groupKey].(string)

	return Assignment{Device: info.Device, FSType: info.FSType, Options: info.Options, Group: group}, true
}

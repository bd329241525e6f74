package btrfs

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/sysfs"
)

// Mode is how a filesystem counts the space of subvolumes.
type Mode string

// Modes, as sysfs names them.
const (
	QuotaOff    Mode = ""
	FullQuota   Mode = "qgroup"
	SimpleQuota Mode = "squota"
)

const (
	levelShift = 48
	// limitReferenced and limitExclusive are BTRFS_QGROUP_LIMIT_MAX_RFER and _MAX_EXCL.
	limitReferenced = 1
	limitExclusive  = 2
	// noLimit removes a limit: CLEAR_VALUE of fs/btrfs/qgroup.c.
	noLimit = math.MaxUint64
	// enableSimple is BTRFS_QUOTA_CTL_ENABLE_SIMPLE_QUOTA.
	enableSimple = 4
)

// Group is the id of a quota group.
type Group uint64

// GroupOf returns the id of the group of a level and a number, which is below 2^48.
func GroupOf(level uint16, number uint64) Group { return Group(uint64(level)<<levelShift | number) }

// Level returns the level of the group: 0 for that of a subvolume.
func (g Group) Level() uint16 { return uint16(g >> levelShift) }

// Number returns the number of the group: the subvolume's id at level 0.
func (g Group) Number() uint64 { return uint64(g) & (1<<levelShift - 1) }

func (g Group) String() string { return fmt.Sprintf("%d/%d", g.Level(), g.Number()) }

// Quotas are the quota groups of one mounted filesystem.
type Quotas struct{ directory string }

// QuotasOf returns the quota groups of the filesystem with this UUID.
func QuotasOf(uuid string) *Quotas {
	return &Quotas{directory: "/sys/fs/btrfs/" + uuid + "/qgroups"}
}

// Mode returns how the filesystem counts now.
func (q *Quotas) Mode() (Mode, error) {
	text, err := sysfs.Read(filepath.Join(q.directory, "mode"))

	switch {
	case errors.Is(err, fs.ErrNotExist):
		return QuotaOff, nil
	case err != nil:
		return QuotaOff, fmt.Errorf("mode of the quotas: %w", err)
	default:
		return Mode(text), nil
	}
}

// Enable turns on simple quotas. Kernels before 6.7 cannot mount the filesystem from then on.
func Enable(directory *os.File) error {
	return ioctl(directory, iocQuotaCtl, "BTRFS_IOC_QUOTA_CTL", &quotaCtlArgs{command: enableSimple})
}

// Counted is what a quota group counts, and its limit.
type Counted struct {
	// Referenced is the space of the group's subvolumes, Exclusive what no other subvolume refers to.
	Referenced, Exclusive int64
	// Limit is 0 if there is none.
	Limit int64
}

// Read returns what the group counts. Errors: fs.ErrNotExist.
func (q *Quotas) Read(group Group) (Counted, error) {
	directory := filepath.Join(q.directory, fmt.Sprintf("%d_%d", group.Level(), group.Number()))

	var (
		found Counted
		flags int64
	)

	for _, each := range []struct {
		name string
		into *int64
	}{{"limit_flags", &flags}, {"max_referenced", &found.Limit}, {"referenced", &found.Referenced}, {"exclusive", &found.Exclusive}} {
		text, err := sysfs.Read(filepath.Join(directory, each.name))
		if errors.Is(err, unix.ENODEV) { // the kernel removes the group meanwhile
			err = fs.ErrNotExist
		}

		if err != nil {
			return Counted{}, fmt.Errorf("quota group %s: %w", group, err)
		}

		number, err := strconv.ParseUint(text, 0, 64)
		if err != nil {
			return Counted{}, fmt.Errorf("quota group %s: %s: %w", group, each.name, err)
		}

		*each.into = int64(min(number, 1<<63-1))
	}

	if flags&limitReferenced == 0 {
		found.Limit = 0
	}

	return found, nil
}

// CreateGroup makes a quota group. One that exists already is no error. Like the other requests that
// change a group it returns EDQUOT if directory is in a subvolume that is at its limit.
func CreateGroup(directory *os.File, group Group) error {
	err := ioctl(directory, iocQgroupCreate, "BTRFS_IOC_QGROUP_CREATE "+group.String(), &createArgs{create: 1, group: uint64(group)})

	return errdefs.Ignore(err, unix.EEXIST)
}

// RemoveGroup removes a quota group and its members' membership. One that is missing is no error.
// Errors: EBUSY for the group of a subvolume that exists, or whose space is still in use, and for one
// that gets members meanwhile.
func RemoveGroup(directory *os.File, group Group) error {
	if group.Level() > 0 {
		members, err := Members(directory, group)
		if err != nil {
			return err
		}

		for _, member := range members {
			if _, err := Unassign(directory, member, group); err != nil {
				return err
			}
		}
	}

	err := ioctl(directory, iocQgroupCreate, "BTRFS_IOC_QGROUP_CREATE "+group.String(), &createArgs{group: uint64(group)})

	return errdefs.Ignore(err, unix.ENOENT)
}

// Assign makes a group the member of another. One that is a member already is no error.
func Assign(directory *os.File, member, group Group) error {
	return errdefs.Ignore(assign(directory, member, group, 1), unix.EEXIST)
}

// Unassign ends the membership of a group in another. It returns how often the kernel had recorded
// it: more than once if the creation of a subvolume has named the group more than once, and then
// each time subtracts the member's space from the group, which counts too little or below zero (seen
// with Linux 6.18). One that is no member is no error.
func Unassign(directory *os.File, member, group Group) (times int, err error) {
	for ; err == nil; times++ {
		err = assign(directory, member, group, 0)
	}

	return times - 1, errdefs.Ignore(err, unix.ENOENT)
}

func assign(directory *os.File, member, group Group, add uint64) error {
	return ioctl(directory, iocQgroupAssign, fmt.Sprintf("BTRFS_IOC_QGROUP_ASSIGN %s %s", member, group),
		&assignArgs{assign: add, source: uint64(member), target: uint64(group)})
}

// Limit limits what the group may refer to.
func Limit(directory *os.File, group Group, bytes int64) error {
	return ioctl(directory, iocQgroupLimit, "BTRFS_IOC_QGROUP_LIMIT "+group.String(),
		&limitArgs{group: uint64(group), flags: limitReferenced, maxReferenced: uint64(bytes)})
}

// Unlimit removes all limits of the group. One that is missing is no error.
func Unlimit(directory *os.File, group Group) error {
	err := ioctl(directory, iocQgroupLimit, "BTRFS_IOC_QGROUP_LIMIT "+group.String(),
		&limitArgs{group: uint64(group), flags: limitReferenced | limitExclusive, maxReferenced: noLimit, maxExclusive: noLimit})

	return errdefs.Ignore(err, unix.ENOENT)
}

// Members returns the groups that are members of a group.
func Members(directory *os.File, group Group) ([]Group, error) {
	return related(directory, group, func(other Group) bool { return other.Level() < group.Level() })
}

// Parents returns the groups of which a group is a member.
func Parents(directory *os.File, group Group) ([]Group, error) {
	return related(directory, group, func(other Group) bool { return other.Level() > group.Level() })
}

// related returns the groups that have a relation with a group, of which there is an item in both
// directions.
func related(directory *os.File, group Group, wanted func(Group) bool) ([]Group, error) {
	var groups []Group

	err := search(directory, quotaTree, qgroupRelation, uint64(group), uint64(group), func(found itemKey, _ []byte) {
		if other := Group(found.offset); wanted(other) {
			groups = append(groups, other)
		}
	})

	return groups, err
}

// Groups returns all quota groups, as of the last transaction.
func Groups(directory *os.File) ([]Group, error) {
	var groups []Group

	err := search(directory, quotaTree, qgroupInfo, 0, 0, func(found itemKey, _ []byte) { groups = append(groups, Group(found.offset)) })

	return groups, err
}

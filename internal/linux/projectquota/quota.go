package projectquota

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
)

// From linux/dqblk_xfs.h and linux/quota.h, which x/sys/unix lacks. In spite of their names, these
// commands work on each filesystem with quotas.
const (
	xGetQuota     = 'X'<<8 + 3
	xSetLimits    = 'X'<<8 + 4
	xGetState     = 'X'<<8 + 8
	xGetNextQuota = 'X'<<8 + 9

	// projectType is PRJQUOTA, and commandShift SUBCMDSHIFT of the macro QCMD.
	projectType  = 2
	commandShift = 8

	quotaVersion = 1 // FS_DQUOT_VERSION
	stateVersion = 1 // FS_QSTATV_VERSION1
	projectQuota = 2 // FS_PROJ_QUOTA

	stateAccounted = 1 << 4 // FS_QUOTA_PDQ_ACCT
	stateEnforced  = 1 << 5 // FS_QUOTA_PDQ_ENFD

	// limitFields are FS_DQ_ISOFT, FS_DQ_IHARD, FS_DQ_BSOFT and FS_DQ_BHARD.
	limitFields = 1<<0 | 1<<1 | 1<<2 | 1<<3

	// basicBlock is the unit of block counts.
	basicBlock = 512
)

// diskQuota is struct fs_disk_quota.
type diskQuota struct {
	version, flags                       int8
	fieldMask                            uint16
	id                                   uint32
	blockHard, blockSoft                 uint64
	inodeHard, inodeSoft                 uint64
	blocks, inodes                       uint64
	inodeTimer, blockTimer               int32
	inodeWarnings, blockWarnings         uint16
	inodeTimerHigh, blockTimerHigh       int8
	realtimeTimerHigh, _                 int8
	realtimeHard, realtimeSoft, realtime uint64
	realtimeTimer                        int32
	realtimeWarnings                     uint16
	_                                    int16
	_                                    [8]byte
}

// fileState is struct fs_qfilestatv.
type fileState struct {
	inode, blocks uint64
	extents, _    uint32
}

// quotaState is struct fs_quota_statv.
type quotaState struct {
	version              int8
	_                    uint8
	flags                uint16
	inCore               uint32
	user, group, project fileState
	_                    [3]int32
	_                    [4]uint16
	_                    uint32
	_                    [7]uint64
}

// Amount is a number of bytes and of inodes.
type Amount struct{ Bytes, Inodes int64 }

// Quota is the usage of a project and its limits, of which 0 is none.
type Quota struct{ Limit, Used Amount }

// IsZero reports whether the project has neither limits nor files.
func (q Quota) IsZero() bool { return q == Quota{} }

// Enforced reports whether the filesystem of an open file enforces the limits of projects. It needs
// no privilege.
func Enforced(file *os.File) (bool, error) {
	state := quotaState{version: stateVersion}

	err := control(file, xGetState, 0, unsafe.Pointer(&state))

	switch {
	// ENOTTY and ENOSYS: a filesystem or kernel without quotas, or none of them is on. ESRCH: the same
	// of some filesystems. EINVAL: a kernel without this filesystem's quotas.
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL),
		errors.Is(err, unix.ENOTSUP):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("quota state of the filesystem of %s: %w", file.Name(), err)
	}

	return state.flags&(stateAccounted|stateEnforced) == stateAccounted|stateEnforced, nil
}

// Get returns the quota of a project on the filesystem of an open file: zero for a project that was
// never used. It needs CAP_SYS_ADMIN.
func Get(file *os.File, project uint32) (Quota, error) {
	var found diskQuota

	err := control(file, xGetQuota, project, unsafe.Pointer(&found))
	if errors.Is(err, unix.ENOENT) { // of XFS
		return Quota{}, nil
	}

	if err != nil {
		return Quota{}, fmt.Errorf("quota of project %d on the filesystem of %s: %w", project, file.Name(), err)
	}

	return found.quota(), nil
}

// SetLimits sets the hard limits of a project; 0 is none. The byte limit is rounded up to 512. It
// takes effect at once, also below what is in use: then only removals succeed. The change is durable
// when a later fsync of the filesystem is. It needs CAP_SYS_ADMIN.
func SetLimits(file *os.File, project uint32, limit Amount) error {
	wanted := diskQuota{
		version: quotaVersion, flags: projectQuota, fieldMask: limitFields, id: project,
		blockHard: toBlocks(limit.Bytes), inodeHard: uint64(max(0, limit.Inodes)),
	}

	if err := control(file, xSetLimits, project, unsafe.Pointer(&wanted)); err != nil {
		return fmt.Errorf("set the limits of project %d on the filesystem of %s: %w", project, file.Name(), err)
	}

	return nil
}

// All returns the projects from an id on that have limits or files, in order of their ids. It ends
// after the first error. It needs CAP_SYS_ADMIN.
func All(file *os.File, from uint32) iter.Seq2[Project, error] {
	return all(from, func(id uint32) (Project, error) {
		var found diskQuota
		if err := control(file, xGetNextQuota, id, unsafe.Pointer(&found)); err != nil {
			return Project{}, fmt.Errorf("project quotas from %d on the filesystem of %s: %w", id, file.Name(), err)
		}

		return Project{ID: found.id, Quota: found.quota()}, nil
	})
}

// all returns what next does, which returns the first project from an id on, and ENOENT or ESRCH if
// there is none.
func all(from uint32, next func(id uint32) (Project, error)) iter.Seq2[Project, error] {
	return func(yield func(Project, error) bool) {
		for id := from; ; id++ {
			found, err := next(id)
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
				return
			}

			if err != nil {
				yield(Project{}, err)

				return
			}

			// The largest number is no id. One before id would begin the list again.
			if found.ID < id || !yield(found, nil) || found.ID >= math.MaxUint32-1 {
				return
			}

			id = found.ID
		}
	}
}

// Project is one of All.
type Project struct {
	Quota

	ID uint32
}

func (q *diskQuota) quota() Quota {
	return Quota{
		Limit: Amount{Bytes: toBytes(q.blockHard), Inodes: toCount(q.inodeHard)},
		Used:  Amount{Bytes: toBytes(q.blocks), Inodes: toCount(q.inodes)},
	}
}

func toBlocks(bytes int64) uint64 {
	return (uint64(max(0, bytes)) + basicBlock - 1) / basicBlock
}

func toBytes(blocks uint64) int64 {
	return toCount(min(blocks, math.MaxInt64/basicBlock)) * basicBlock
}

func toCount(value uint64) int64 { return int64(min(value, math.MaxInt64)) }

// control is quotactl_fd(2).
func control(file *os.File, command, project uint32, argument unsafe.Pointer) error {
	return eintr.Control(file, func(descriptor int) error {
		_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, uintptr(descriptor), uintptr(command<<commandShift|projectType),
			uintptr(project), uintptr(argument), 0, 0)
		if errno != 0 {
			return os.NewSyscallError("quotactl_fd", errno)
		}

		return nil
	})
}

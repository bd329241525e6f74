package filesystem

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Where things are in the superblock: fs/xfs/libxfs/xfs_format.h, struct xfs_dsb.
const (
	xfsMagic       = "XFSB"
	xfsBlockSize   = 4
	xfsDataBlocks  = 8
	xfsSuperLength = 16
)

const (
	xfsPackage      = "xfsprogs"
	xfsMinimumBytes = 300 << 20
	// xfsSmallestGroup is XFS_MIN_AG_BLOCKS: the kernel leaves a shorter rest of
	// the device unused.
	xfsSmallestGroup = 64
)

type xfs struct{ run Runner }

func (*xfs) Name() string        { return XFS }
func (*xfs) MinimumBytes() int64 { return xfsMinimumBytes }

var xfsGrammar = mkfsGrammar{tool: "mkfs.xfs", options: map[string]optionRule{
	"-L": labelRule,
	"-b": suboptions(sameRule(numberRule, "size")),
	"-d": suboptions(mergeRules(sameRule(numberRule, "agcount", "agsize", "concurrency", "cowextsize", "extszinherit", "su", "sunit",
		"sw", "swidth"), map[string]optionRule{"noalign": withoutValueRule})),
	"-i": suboptions(sameRule(numberRule, "exchange", "maxpct", "nrext64", "perblock", "size", "sparse")),
	"-l": suboptions(sameRule(numberRule, "concurrency", "lazy-count", "size", "su", "sunit", "version")),
	"-m": suboptions(sameRule(oneOf("0", "1"), "bigtime", "crc", "finobt", "inobtcount", "reflink", "rmapbt")),
	"-n": suboptions(sameRule(numberRule, "ftype", "parent", "size")),
	"-s": oneOf("size=4096"),
}}

// Make states the sector size, since an xfs with larger sectors than the device
// is fine and one with smaller ones does not mount.
func (x *xfs) Make(ctx context.Context, path string, o MakeOptions) error {
	return mkfs(ctx, x.run, x, path, o, func(sector int, options []option) []string {
		args := []string{"-q", "-f", "-K"}
		if !slices.ContainsFunc(options, func(o option) bool { return o.name == "-s" }) {
			args = append(args, "-s", "size="+strconv.Itoa(sector))
		}

		return append(args, words(options)...)
	})
}

// xfsDirtyLog is part of what xfs_repair -n says when it had to leave the log
// out; whatever else it then finds says nothing.
const xfsDirtyLog = "valuable metadata changes in a log"

// xfsForeignLog is part of what it says of a log that the kernel refuses; it
// does not count as an error.
const xfsForeignLog = "mismatched uuid in log"

// xfsOtherCopies is part of what it says of a superblock that is not what most of its copies are,
// and xfsOtherCopy of a copy that is not what most of them are.
const (
	xfsOtherCopies = "Primary superblock would have been modified"
	xfsOtherCopy   = "primary/secondary superblock"
)

// Check repairs nothing: what the log holds is replayed by the next mount, and
// xfs_repair of other damage loses data that an administrator might rescue.
func (x *xfs) Check(ctx context.Context, path string) (Verdict, error) {
	// Without a superblock, xfs_repair would read all of the device to find a copy.
	t, verdict, err := inspectForCheck(path, XFS)
	if err != nil || verdict.State == Damaged {
		return verdict, err
	}

	return x.check(ctx, path, t, Command{}, false)
}

// ForceCheck: Check is all there is.
func (x *xfs) ForceCheck(ctx context.Context, path string) (Verdict, error) {
	return x.Check(ctx, path)
}

const (
	// xfsRepairCache has xfs_repair cache at most eight times as many buffers, of 4 to 64 KiB.
	// Otherwise its cache takes up to three quarters of the machine's memory.
	xfsRepairCache = "bhash=2048"
	// xfsPrefetchGroups is the most groups that xfs_repair prefetches. Its threads grow with the
	// groups, and its time with their square: 0.2 s for 128 groups, 10 s for 1,400, 8 minutes for
	// 14,000, which without prefetching take 4 s. With few groups and many files, prefetching
	// halves the time.
	xfsPrefetchGroups = 128
)

// check runs xfs_repair, which repairs nothing; it fills in what is to be run. dirty means that the log is
// known to hold changes.
func (x *xfs) check(ctx context.Context, path string, t target, command Command, dirty bool) (Verdict, error) {
	groups, err := readFrom(path, readXFSGroups)
	if err != nil {
		return Verdict{}, fmt.Errorf("check %s: %w", path, err)
	}

	command.Tool, command.Package, command.Args = "xfs_repair", xfsPackage, []string{"-n", "-o", xfsRepairCache}
	if groups > xfsPrefetchGroups {
		command.Args = append(command.Args, "-P")
	}

	if t.regular {
		command.Args = append(command.Args, "-f")
	}

	command.Args = append(command.Args, "--", path)

	result, err := runReader(ctx, x.run, path, command)

	switch damaged := (Verdict{State: Damaged, Detail: lastLines(result.Output)}); {
	case err != nil:
		return Verdict{}, err
	case dirty && containsAny(result.Output, xfsBadBlocks):
		return damaged, nil
	case strings.Contains(result.Output, xfsDirtyLog):
		return Verdict{State: NeedsReplay, Detail: "the log holds changes"}, nil
	case result.ExitCode == 0 && !strings.Contains(result.Output, xfsForeignLog):
		return Verdict{State: Clean}, nil
	case strings.Contains(result.Output, xfsOtherCopies), strings.Contains(result.Output, xfsOtherCopy):
		return x.judgeCopies(ctx, path, damaged)
	default:
		return damaged, nil
	}
}

// readXFSGroups returns the number of groups in the superblock, 0 where the file ends before it.
func readXFSGroups(r io.ReaderAt) (uint32, error) {
	number, err := readAt(r, xfsGroups, 4)
	if err != nil || number == nil {
		return 0, err
	}

	return binary.BigEndian.Uint32(number), nil
}

// judgeCopies distinguishes a damaged superblock from an interrupted growth. Its transaction may be
// in the log only, while the copies, which are written after it and are not logged, have it already:
// xfs_repair compares them before it searches for a log. Or the log was replayed, and copies lack it.
func (x *xfs) judgeCopies(ctx context.Context, path string, damaged Verdict) (Verdict, error) {
	dirty, err := x.logIsDirty(ctx, path, Command{})

	switch {
	case err != nil:
		return Verdict{}, err
	case dirty:
		return Verdict{State: NeedsReplay, Detail: "the log holds changes of the superblock"}, nil
	}

	older, err := readFrom(path, copiesAreOlder)

	switch {
	case err != nil:
		return Verdict{}, fmt.Errorf("read the superblocks of %s: %w", path, err)
	case older:
		return Verdict{State: NeedsReplay, Detail: "copies of the superblock lack a growth"}, nil
	default:
		return damaged, nil
	}
}

// copiesAreOlder reports whether the superblock has grown since some of its copies were written. It
// is false if a copy is another filesystem's, or has a size that is larger.
func copiesAreOlder(r io.ReaderAt) (older bool, err error) {
	layout, err := readXFSLayout(r)

	switch {
	case errors.Is(err, ErrNoSuperblock), errors.Is(err, errors.ErrUnsupported):
		return false, nil // it is damaged, which the caller reports
	case err != nil:
		return false, err
	}

	for group := uint32(1); group < layout.groups; group++ {
		super, err := readBlock(r, layout.superOffset(group), xfsSuperAll)
		if err != nil {
			return false, err
		}

		ofIt, olderCopy := compareCopy(layout.super, super)
		if !ofIt {
			return false, nil
		}

		older = older || olderCopy
	}

	return older, nil
}

// compareCopy reports whether a copy is one of the superblock, or of what that was before it has
// grown, and whether it is the latter.
func compareCopy(super, copied []byte) (ofIt, older bool) {
	same := func(from, to int) bool { return bytes.Equal(copied[from:to], super[from:to]) }
	blocks, now := binary.BigEndian.Uint64(copied[xfsDataBlocks:]), binary.BigEndian.Uint64(super[xfsDataBlocks:])
	ofIt = same(0, xfsDataBlocks) && same(xfsUUID, xfsLogStart) && same(xfsGroupBlocks, xfsGroups) && blocks <= now

	return ofIt, blocks < now
}

const (
	// xfsLogState begins what xfs_logprint says of a log: that it is CLEAN or DIRTY.
	xfsLogState = "state: <"
	// xfsDamagedLog is what it says of one that is damaged, of which xfs_repair says more.
	xfsDamagedLog = "failed to find head and tail"
)

// logIsDirty says whether the log holds changes; it fills in what is to be run. A damaged one holds none.
func (x *xfs) logIsDirty(ctx context.Context, path string, command Command) (bool, error) {
	command.Tool, command.Package, command.Args = "xfs_logprint", xfsPackage, []string{"-t", "--", path}

	result, err := runReader(ctx, x.run, path, command)
	if err != nil {
		return false, fmt.Errorf("read the log of %s: %w", path, err)
	}

	if result.ExitCode != 0 && !strings.Contains(result.Output, xfsLogState) && !strings.Contains(result.Output, xfsDamagedLog) {
		return false, fmt.Errorf("read the log of %s: %w", path, toolError(command, result))
	}

	return strings.Contains(result.Output, xfsLogState+"DIRTY>"), nil
}

const (
	// XFS_IOC_FSGEOMETRY_V1 is _IOR('X', 100, struct xfs_fsop_geom_v1).
	xfsIocGeometry = 0x80705864
	// XFS_IOC_FSGROWFSDATA is _IOW('X', 110, struct xfs_growfs_data).
	xfsIocGrowData = 0x4010586e
)

// xfsGeometry is struct xfs_fsop_geom_v1 of fs/xfs/libxfs/xfs_fs.h: the oldest
// has all that is needed.
type xfsGeometry struct {
	blockSize, _, groupBlocks, _, _, _, _, inodesPercent uint32
	dataBlocks, _, _, _                                  uint64
	_                                                    [16]byte
	_                                                    [8]uint32
}

type xfsGrowData struct {
	newBlocks     uint64
	inodesPercent uint32
	_             uint32
}

func (x *xfs) GrowMounted(ctx context.Context, mountpoint *os.File, deviceBytes int64) error {
	directory, geometry, err := openXFS(mountpoint)
	if err != nil {
		return err
	}
	defer directory.Close()

	blocks := uint64(deviceBytes) / uint64(geometry.blockSize)
	if rest := blocks % uint64(geometry.groupBlocks); rest < xfsSmallestGroup {
		blocks -= rest
	}

	// A smaller number would be an order to shrink.
	if blocks <= geometry.dataBlocks {
		return nil
	}

	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}

	grow := xfsGrowData{newBlocks: blocks, inodesPercent: geometry.inodesPercent}
	_, err = ioctl(directory, xfsIocGrowData, unsafe.Pointer(&grow))

	return growError(mountpoint, deviceBytes, "XFS_IOC_FSGROWFSDATA", err)
}

// FinishReplay writes the copies of the superblock, by a growth to the present size: a replay of a
// growth writes the superblock only.
func (x *xfs) FinishReplay(mountpoint *os.File) error {
	directory, geometry, err := openXFS(mountpoint)
	if err != nil {
		return err
	}
	defer directory.Close()

	grow := xfsGrowData{newBlocks: geometry.dataBlocks, inodesPercent: geometry.inodesPercent}
	if _, err := ioctl(directory, xfsIocGrowData, unsafe.Pointer(&grow)); err != nil {
		return fmt.Errorf("write the superblocks of %s: XFS_IOC_FSGROWFSDATA: %w", mountpoint.Name(), err)
	}

	return nil
}

// openXFS opens the root of a mounted XFS, which the caller must close, and returns its geometry.
func openXFS(mountpoint *os.File) (*os.File, xfsGeometry, error) {
	var geometry xfsGeometry

	directory, _, err := openMounted(mountpoint, unix.XFS_SUPER_MAGIC, XFS)
	if err != nil {
		return nil, geometry, err
	}

	_, err = ioctl(directory, xfsIocGeometry, unsafe.Pointer(&geometry))
	if err == nil && (geometry.blockSize == 0 || geometry.groupBlocks == 0) {
		err = unix.EINVAL
	}

	if err != nil {
		return nil, geometry, errors.Join(fmt.Errorf("grow %s: XFS_IOC_FSGEOMETRY: %w", mountpoint.Name(), err), directory.Close())
	}

	return directory, geometry, nil
}

// GrowthSurvivesCrash is false since the kernel's replay takes the blocks of a new
// allocation group for corruption: they lie beyond the end of a filesystem whose
// superblock, in the same log, has not been replayed yet (Linux 6.18).
func (*xfs) GrowthSurvivesCrash() bool { return false }

func (*xfs) GrowUnmounted(context.Context, string) error { return ErrNeedsMount }

func (*xfs) SizeBytes(r io.ReaderAt) (int64, error) {
	super, err := readBlock(r, 0, xfsSuperLength)

	switch {
	case err != nil:
		return 0, fmt.Errorf("%s: %w", XFS, err)
	case string(super[:len(xfsMagic)]) != xfsMagic:
		return 0, fmt.Errorf("%s: %w", XFS, ErrNoSuperblock)
	}

	blockSize := uint64(binary.BigEndian.Uint32(super[xfsBlockSize:]))
	if !plausibleBlockSize(blockSize) {
		return 0, fmt.Errorf("%s: %w: block size %d", XFS, ErrNoSuperblock, blockSize)
	}

	return multiplySize(XFS, binary.BigEndian.Uint64(super[xfsDataBlocks:]), blockSize)
}

package quota

import (
	"crypto/sha256"
	"encoding/binary"
	"iter"

	"github.com/touchstone-csi/touchstone/internal/linux/projectquota"
)

const (
	// firstProject is the lowest project id of a directory: those below are left to administrators,
	// who number projects by hand.
	firstProject = 1 << 20
	// lastProject leaves out the largest number, which the kernel uses for "no project".
	lastProject = 1<<32 - 2
	// projectCandidates is how many ids an object may have. All of them are taken only if the
	// filesystem has projects in the order of lastProject.
	projectCandidates = 64

	// bytesPerInode is the ratio of mke2fs, and leastInodes lets a small volume have files at all.
	bytesPerInode = 16 << 10
	leastInodes   = 1024
)

// projectIDs returns the project ids that the directory of an object may have, in the order in
// which they are tried. They follow from the object's id, so that a project id can be checked
// without a record: the owner of a directory may change its project, but not to that of another
// volume.
func projectIDs(id string) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for attempt := range byte(projectCandidates) {
			sum := sha256.Sum256(append([]byte(id), 0, attempt))
			if !yield(firstProject + uint32(binary.BigEndian.Uint64(sum[:])%(lastProject-firstProject+1))) {
				return
			}
		}
	}
}

// isProjectOf reports whether the directory of an object may have the project. That is nearly always
// the first one.
func isProjectOf(id string, project uint32) bool {
	for each := range projectIDs(id) {
		if each == project {
			return true
		}
	}

	return false
}

// inodeLimit returns how many files, directories and links a directory of that size may have.
func inodeLimit(sizeBytes int64) int64 { return max(leastInodes, sizeBytes/bytesPerInode) }

// raised returns the limits for a directory of that size, and whether they exceed the current ones,
// which are never lowered.
func raised(current projectquota.Amount, bytes int64) (projectquota.Amount, bool) {
	wanted := projectquota.Amount{
		Bytes: max(current.Bytes, bytes), Inodes: max(current.Inodes, inodeLimit(max(current.Bytes, bytes))),
	}

	return wanted, wanted != current
}

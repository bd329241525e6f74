package btrfs

import (
	"encoding/binary"
	"math"
	"os"
)

// The trees and items that are searched: include/uapi/linux/btrfs_tree.h.
const (
	rootTree  = 1
	quotaTree = 8

	rootItem       = 132
	rootBackref    = 144
	rootRef        = 156
	qgroupInfo     = 242
	qgroupRelation = 246

	maxOffset = math.MaxUint64
)

// itemKey is the key of an item of a tree. Items are ordered by object, kind and offset.
type itemKey struct {
	object uint64
	kind   uint32
	offset uint64
}

// search calls visit with the items of one kind that a tree has for the objects from first to last. It needs
// CAP_SYS_ADMIN.
func search(directory *os.File, tree uint64, kind uint32, first, last uint64, visit func(key itemKey, data []byte)) error {
	next := itemKey{first, kind, 0}

	for {
		arguments := searchArgs{
			tree: tree, minObject: next.object, minKind: next.kind, minOffset: next.offset,
			maxObject: last, maxKind: kind, maxOffset: maxOffset, maxTransid: math.MaxUint64, items: math.MaxUint32,
		}
		if err := ioctl(directory, iocTreeSearch, "BTRFS_IOC_TREE_SEARCH", &arguments); err != nil {
			return err
		}

		if arguments.items == 0 {
			return nil
		}

		found := arguments.each(kind, visit)
		if found.offset == maxOffset {
			return nil
		}

		next = itemKey{found.object, found.kind, found.offset + 1}
	}
}

const searchHeader = 32

// searchArgs is struct btrfs_ioctl_search_args.
type searchArgs struct {
	tree                 uint64
	minObject, maxObject uint64
	minOffset, maxOffset uint64
	_, maxTransid        uint64
	minKind, maxKind     uint32
	// items is how many to return at most, and then how many there are in buffer.
	items  uint32
	_      uint32
	_      [4]uint64
	buffer [3992]byte
}

// each calls visit with the items in the buffer, and returns the key of the last one.
func (a *searchArgs) each(kind uint32, visit func(key itemKey, data []byte)) itemKey {
	var last itemKey

	rest := a.buffer[:]

	for range a.items {
		// struct btrfs_ioctl_search_header
		last = itemKey{
			object: binary.NativeEndian.Uint64(rest[8:]), offset: binary.NativeEndian.Uint64(rest[16:]),
			kind: binary.NativeEndian.Uint32(rest[24:]),
		}
		length := binary.NativeEndian.Uint32(rest[28:])

		if last.kind == kind {
			visit(last, rest[searchHeader:searchHeader+length])
		}

		rest = rest[searchHeader+length:]
	}

	return last
}

package faults

import (
	"context"
	"fmt"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/touchstone-csi/touchstone/test/writelog"
)

// node is a file or a directory: fs.LoopbackNode behind the faults.
type node struct {
	*fs.LoopbackNode

	faults *faultSet
	// log is nil where nothing is recorded.
	log *writelog.Writer
}

// WrapChild has everything beneath a node be one, too.
func (n *node) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	child, ok := ops.(*fs.LoopbackNode)
	if !ok {
		return ops
	}

	return &node{LoopbackNode: child, faults: n.faults, log: n.log}
}

// meet is for requests about the node itself.
func (n *node) meet(op Ops) syscall.Errno { return n.meetAt(op, 0, 0) }

func (n *node) meetAt(op Ops, offset, length int64) syscall.Errno {
	return n.faults.answer(request{name: n.Path(nil), op: op, offset: offset, length: length})
}

// meetChild is for requests about a name in a directory.
func (n *node) meetChild(name string) syscall.Errno {
	return n.faults.answer(request{name: path.Join(n.Path(nil), name), op: Names})
}

// withoutDirect is what the child opens files with: the kernel's buffers are
// aligned, its own are not.
func withoutDirect(flags uint32) uint32 { return flags &^ syscall.O_DIRECT }

func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if errno := n.meet(Names); errno != 0 {
		return nil, 0, errno
	}

	return n.LoopbackNode.Open(ctx, withoutDirect(flags))
}

func (n *node) Read(ctx context.Context, file fs.FileHandle, buffer []byte, offset int64) (fuse.ReadResult, syscall.Errno) {
	if errno := n.meetAt(Reads, offset, int64(len(buffer))); errno != 0 {
		return nil, errno
	}

	reader, ok := file.(fs.FileReader)
	if !ok {
		return nil, syscall.EBADF
	}

	return reader.Read(ctx, buffer, offset)
}

// Writev is asked for contiguous data, too.
func (n *node) Writev(ctx context.Context, file fs.FileHandle, data [][]byte, offset int64) (uint32, syscall.Errno) {
	var length int64
	for _, part := range data {
		length += int64(len(part))
	}

	if errno := n.meetAt(Writes, offset, length); errno != 0 {
		return 0, errno
	}

	writer, ok := file.(fs.FileWritever)
	if !ok {
		return 0, syscall.EBADF
	}

	var written uint32

	entry := writelog.Entry{Kind: writelog.Write, Offset: offset, Length: length}
	errno := n.record(entry, data, func() (errno syscall.Errno) {
		written, errno = writer.Writev(ctx, data, offset)

		return errno
	})

	return written, errno
}

// record has an entry precede what do does, if there is a log.
func (n *node) record(entry writelog.Entry, data [][]byte, do func() syscall.Errno) syscall.Errno {
	if n.log == nil {
		return do()
	}

	var errno syscall.Errno

	if err := n.log.Append(entry, data, func() { errno = do() }); err != nil {
		return syscall.EIO
	}

	return errno
}

func (n *node) Allocate(ctx context.Context, file fs.FileHandle, offset, size uint64, mode uint32) syscall.Errno {
	if errno := n.meetAt(Writes, int64(offset), int64(size)); errno != 0 {
		return errno
	}

	allocater, ok := file.(fs.FileAllocater)
	if !ok {
		return syscall.EBADF
	}

	entry := writelog.Entry{Kind: writelog.Zero, Offset: int64(offset), Length: int64(size)}

	return n.record(entry, nil, func() syscall.Errno { return allocater.Allocate(ctx, offset, size, mode) })
}

func (n *node) CopyFileRange(ctx context.Context, from fs.FileHandle, offsetFrom uint64, to *fs.Inode, into fs.FileHandle,
	offsetInto, length, flags uint64,
) (uint32, syscall.Errno) {
	if errno := n.meetAt(Reads, int64(offsetFrom), int64(length)); errno != 0 {
		return 0, errno
	}

	target := request{name: to.Path(nil), op: Writes, offset: int64(offsetInto), length: int64(length)}
	if errno := n.faults.answer(target); errno != 0 {
		return 0, errno
	}

	return n.LoopbackNode.CopyFileRange(ctx, from, offsetFrom, to, into, offsetInto, length, flags)
}

// Fsync is asked for directories, too, without a handle.
func (n *node) Fsync(ctx context.Context, file fs.FileHandle, flags uint32) syscall.Errno {
	if errno := n.faults.answer(request{name: n.Path(nil), op: Syncs, process: processOf(ctx)}); errno != 0 {
		return errno
	}

	// The log is what counts then; the backing file does not survive the test.
	if n.log != nil {
		return n.record(writelog.Entry{Kind: writelog.Flush}, nil, func() syscall.Errno { return 0 })
	}

	if syncer, ok := file.(fs.FileFsyncer); ok {
		return syncer.Fsync(ctx, flags)
	}

	return 0
}

// processOf returns the id of the process that makes the request; FUSE names the
// thread. It is 0 if that is gone.
func processOf(ctx context.Context) int {
	caller, ok := fuse.FromContext(ctx)
	if !ok {
		return 0
	}

	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", caller.Pid))
	if err != nil {
		return 0
	}

	_, rest, _ := strings.Cut(string(status), "Tgid:")

	var process int

	_, _ = fmt.Sscan(rest, &process)

	return process
}

// Setlk is asked for flock where ServeLocking serves.
func (n *node) Setlk(ctx context.Context, file fs.FileHandle, owner uint64, lock *fuse.FileLock, flags uint32) syscall.Errno {
	if errno := n.meet(Locks); errno != 0 {
		return errno
	}

	locker, ok := file.(fs.FileSetlker)
	if !ok {
		return syscall.EBADF
	}

	return locker.Setlk(ctx, owner, lock, flags)
}

func (n *node) Getattr(ctx context.Context, file fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	if errno := n.meet(Names); errno != 0 {
		return errno
	}

	return n.LoopbackNode.Getattr(ctx, file, out)
}

func (n *node) Statx(ctx context.Context, file fs.FileHandle, flags, mask uint32, out *fuse.StatxOut) syscall.Errno {
	if errno := n.meet(Names); errno != 0 {
		return errno
	}

	return n.LoopbackNode.Statx(ctx, file, flags, mask, out)
}

func (n *node) Setattr(ctx context.Context, file fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	op := Names
	if _, resizes := in.GetSize(); resizes {
		op = Writes
	}

	if errno := n.meet(op); errno != 0 {
		return errno
	}

	return n.LoopbackNode.Setattr(ctx, file, in, out)
}

func (n *node) Statfs(ctx context.Context, out *fuse.StatfsOut) syscall.Errno {
	if errno := n.meet(Names); errno != 0 {
		return errno
	}

	return n.LoopbackNode.Statfs(ctx, out)
}

func (n *node) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if errno := n.meetChild(name); errno != 0 {
		return nil, errno
	}

	return n.LoopbackNode.Lookup(ctx, name, out)
}

func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (
	*fs.Inode, fs.FileHandle, uint32, syscall.Errno,
) {
	if errno := n.meetChild(name); errno != 0 {
		return nil, nil, 0, errno
	}

	return n.LoopbackNode.Create(ctx, name, withoutDirect(flags), mode, out)
}

func (n *node) Tmpfile(ctx context.Context, flags, mode uint32, out *fuse.EntryOut) (
	*fs.Inode, fs.FileHandle, uint32, syscall.Errno,
) {
	if errno := n.meet(Names); errno != 0 {
		return nil, nil, 0, errno
	}

	return n.LoopbackNode.Tmpfile(ctx, withoutDirect(flags), mode, out)
}

func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if errno := n.meetChild(name); errno != 0 {
		return nil, errno
	}

	return n.LoopbackNode.Mkdir(ctx, name, mode, out)
}

func (n *node) Rmdir(ctx context.Context, name string) syscall.Errno {
	if errno := n.meetChild(name); errno != 0 {
		return errno
	}

	return n.LoopbackNode.Rmdir(ctx, name)
}

func (n *node) Unlink(ctx context.Context, name string) syscall.Errno {
	if errno := n.meetChild(name); errno != 0 {
		return errno
	}

	return n.LoopbackNode.Unlink(ctx, name)
}

func (n *node) Rename(ctx context.Context, name string, parent fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	if errno := n.meetChild(name); errno != 0 {
		return errno
	}

	return n.LoopbackNode.Rename(ctx, name, parent, newName, flags)
}

func (n *node) OpendirHandle(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if errno := n.meet(Names); errno != 0 {
		return nil, 0, errno
	}

	opened, behind, errno := n.LoopbackNode.OpendirHandle(ctx, flags)
	if errno != 0 {
		return nil, 0, errno
	}

	stream, ok := opened.(dirStream)
	if !ok {
		return nil, 0, syscall.ENOTSUP
	}

	return &directory{dirStream: stream, node: n}, behind, 0
}

// dirStream is what the child asks of an open directory.
type dirStream interface {
	fs.FileReaddirenter
	fs.FileSeekdirer
	fs.FileReleasedirer
	fs.FileFsyncdirer
}

// directory is an open directory behind the faults.
type directory struct {
	dirStream

	node *node
}

func (d *directory) Fsyncdir(ctx context.Context, flags uint32) syscall.Errno {
	if errno := d.node.Fsync(ctx, nil, flags); errno != 0 {
		return errno
	}

	return d.dirStream.Fsyncdir(ctx, flags)
}

func (n *node) Getxattr(ctx context.Context, name string, into []byte) (uint32, syscall.Errno) {
	if errno := n.meet(Names); errno != 0 {
		return 0, errno
	}

	return n.LoopbackNode.Getxattr(ctx, name, into)
}

func (n *node) Setxattr(ctx context.Context, name string, value []byte, flags uint32) syscall.Errno {
	if errno := n.meet(Names); errno != 0 {
		return errno
	}

	return n.LoopbackNode.Setxattr(ctx, name, value, flags)
}

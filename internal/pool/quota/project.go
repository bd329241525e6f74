package quota

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/projectquota"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// errNoProject is returned if all project ids of a directory are in use.
var errNoProject = errors.New("no project id is free for the directory; list the projects of the filesystem with repquota -P")

// projectCalls are those of package projectquota.
type projectCalls struct {
	enforced     func(file *os.File) (bool, error)
	all          func(file *os.File, from uint32) iter.Seq2[projectquota.Project, error]
	get          func(file *os.File, project uint32) (projectquota.Quota, error)
	setLimits    func(file *os.File, project uint32, limit projectquota.Amount) error
	membershipOf func(directory *os.File) (projectquota.Membership, error)
	join         func(directory *os.File, project uint32) error
	giveBack     func(file *os.File, project uint32, directory bool) (bool, error)
	leave        func(directory *os.File) error
}

func kernelProjects() projectCalls {
	return projectCalls{
		enforced: projectquota.Enforced, all: projectquota.All, get: projectquota.Get, setLimits: projectquota.SetLimits,
		membershipOf: projectquota.MembershipOf, join: projectquota.Join, giveBack: projectquota.Return, leave: projectquota.Leave,
	}
}

// projects makes a project for each directory, on XFS and ext4 with project quotas.
//
// The kernel's count of inodes decides whether an id is in use, so there is no list of them that
// could differ from the directories. A directory joins its project while it is empty and before it
// has a limit, and the limit is cleared before the directory is removed: no interruption leaves a
// limit without a directory. So RemoveStale, which is plain's, does nothing. Only a walk finds the files
// that have another project, so Confine and Grown are plain's, too, and so is Seal, because snapshots are
// not mounted.
type projects struct {
	plain
	projectCalls

	// pool is an open directory of the filesystem.
	pool *os.File
	// shares is true if files can share blocks, which then count for the project of each.
	shares bool
}

// openProjects returns false if the filesystem cannot have project quotas.
func openProjects(pool *os.File) (Directories, bool, error) {
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(pool.Fd()), &stat); err != nil {
		return nil, false, os.NewSyscallError("fstatfs", err)
	}

	return (&projects{projectCalls: kernelProjects(), pool: pool}).on(stat.Type)
}

// on returns what makes directories on a filesystem of this type.
func (p *projects) on(kind int64) (Directories, bool, error) {
	if kind != unix.XFS_SUPER_MAGIC && kind != unix.EXT4_SUPER_MAGIC {
		return nil, false, nil
	}

	p.shares = kind == unix.XFS_SUPER_MAGIC

	reason, err := p.reasonWithout()
	if err != nil {
		return nil, false, err
	}

	if reason != "" {
		return plain{reason: reason}, true, nil
	}

	return p, true, nil
}

// reasonWithout returns why projects cannot be used, empty if they can.
func (p *projects) reasonWithout() (string, error) {
	enforced, err := p.enforced(p.pool)
	if err == nil && enforced {
		err = p.canRead()
	}

	switch {
	// Seccomp filters refuse the system call without the capability, too.
	case errors.Is(err, unix.EPERM):
		return "project quotas can be set with CAP_SYS_ADMIN only; give it to the driver", nil
	case err != nil:
		return "", err
	case !enforced && p.shares:
		return "the filesystem is mounted without project quotas; unmount it and mount it with the option prjquota, " +
			"for the root filesystem with rootflags=prjquota on the kernel's command line; " +
			"this needs a kernel with CONFIG_XFS_QUOTA, Linux 5.14 or newer, with which an embedded pool is mounted so", nil
	case !enforced:
		return "the filesystem is mounted without project quotas; unmount it, run tune2fs -O project,quota on its device " +
			"and mount it with the option prjquota; this needs a kernel with CONFIG_QUOTA and CONFIG_QFMT_V2, Linux 5.14 or newer", nil
	}

	member, err := p.membershipOf(p.pool)
	if err != nil || !member.Inherited {
		return "", err
	}

	return fmt.Sprintf("the pool's directory belongs to project %d, and projects cannot be inside of one another; "+
		"use a directory without a project", member.Project), nil
}

// canRead reads one project that exists: reading one that does not, ext4 writes it first.
func (p *projects) canRead() error {
	for _, err := range p.all(p.pool, firstProject) {
		return err
	}

	return nil
}

func (*projects) Support() Support { return Support{Kind: Project, Limited: true} }

// Make also completes a directory whose making was interrupted, before it returns fs.ErrExist.
func (p *projects) Make(parent *os.Root, name string, mode os.FileMode) error {
	err := p.plain.Make(parent, name, mode)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}

	return cmp.Or(p.joinIn(parent, name), err)
}

// joinIn makes a directory belong to a project, if it has none and is empty. Files that it has would
// not count, and could not be renamed.
func (p *projects) joinIn(parent *os.Root, name string) error {
	directory, err := tree.OpenIn(parent, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer directory.Close()

	_, found, err := p.projectOf(directory)
	if err != nil || found {
		return err
	}

	if _, err := directory.Readdirnames(1); !errors.Is(err, io.EOF) {
		return err
	}

	return p.joinNew(directory)
}

// joinNew makes an empty directory belong to a project that has neither files nor limits.
func (p *projects) joinNew(directory *os.File) error {
	for id := range projectIDs(filepath.Base(directory.Name())) {
		found, err := p.get(p.pool, id)
		if err != nil {
			return err
		}

		if !found.IsZero() {
			continue
		}

		if err := p.join(directory, id); err != nil {
			return err
		}

		// Another driver may have chosen the same id meanwhile: then at least one of both finds
		// two directories, and takes its next id, which is not the other's.
		found, err = p.get(p.pool, id)
		if err != nil {
			return err
		}

		if found.Used.Inodes == 1 {
			return nil
		}
	}

	return errors.Join(errNoProject, p.leave(directory))
}

// projectOf returns the project of a directory. It returns false for one that has none of its own,
// such as a directory that was made while the filesystem had no quotas.
func (p *projects) projectOf(directory *os.File) (uint32, bool, error) {
	member, err := p.membershipOf(directory)
	if err != nil {
		return 0, false, err
	}

	return member.Project, member.Inherited && isProjectOf(filepath.Base(directory.Name()), member.Project), nil
}

func (p *projects) Limit(directory *os.File, bytes int64) error {
	project, found, err := p.projectOf(directory)
	if err != nil || !found {
		return err
	}

	counted, err := p.get(p.pool, project)
	if err != nil {
		return err
	}

	limit, changed := raised(counted.Limit, bytes)
	if !changed {
		return nil
	}

	return p.setLimits(p.pool, project, limit)
}

// Sweep gives files that their owner has moved to another project, or that were made in a directory
// which does not give its project to them, the project of the directory.
func (p *projects) Sweep(ctx context.Context, directory *os.File) (bool, error) {
	project, found, err := p.projectOf(directory)
	if err == nil && !found {
		project, found, err = p.limitedProject(filepath.Base(directory.Name()))
	}

	if err != nil || !found {
		return false, err
	}

	evaded := false

	err = tree.Visit(ctx, directory, func(file *os.File, isDirectory bool) error {
		returned, err := p.giveBack(file, project, isDirectory)
		evaded = evaded || returned

		return err
	})

	return evaded, err
}

// limitedProject returns the project with limits that an object has, of which its directory has left.
func (p *projects) limitedProject(id string) (uint32, bool, error) {
	for each, err := range p.all(p.pool, firstProject) {
		if err != nil {
			return 0, false, err
		}

		if each.Limit != (projectquota.Amount{}) && isProjectOf(id, each.ID) {
			return each.ID, true, nil
		}
	}

	return 0, false, nil
}

func (p *projects) Usage(directory *os.File) (Usage, bool, error) {
	counted, found, err := p.read(directory)

	return Usage{
		LimitBytes: counted.Limit.Bytes, LimitInodes: counted.Limit.Inodes,
		Bytes: counted.Used.Bytes, Inodes: counted.Used.Inodes,
	}, found && counted.Limit.Bytes > 0, err
}

func (p *projects) read(directory *os.File) (projectquota.Quota, bool, error) {
	project, found, err := p.projectOf(directory)
	if err != nil || !found {
		return projectquota.Quota{}, false, err
	}

	counted, err := p.get(p.pool, project)

	return counted, err == nil, err
}

// Allocated returns the usage of the project, on a filesystem whose files share no blocks.
func (p *projects) Allocated(directory *os.File) (int64, bool, error) {
	if p.shares {
		return 0, false, nil
	}

	counted, found, err := p.read(directory)

	return counted.Used.Bytes, found, err
}

// Sync changes the directory, by setting the project that it has, and syncs it: fsync waits for the
// last transaction that changed the directory, which is not before the one that changed the limit.
func (p *projects) Sync(directory *os.File) error {
	project, found, err := p.projectOf(directory)
	if err != nil || !found {
		return err
	}

	return errors.Join(p.join(directory, project), directory.Sync())
}

// Remove clears the limits of the project and leaves the tree to the caller. The directory must not
// impose its project on what is renamed into it: the removal of deep trees moves directories up,
// whose owner may have changed their project.
func (p *projects) Remove(_ context.Context, parent *os.File, name string) (bool, error) {
	directory, err := openToRemove(parent, name)
	if err != nil || directory == nil {
		return false, err
	}
	defer directory.Close()

	member, err := p.membershipOf(directory)
	if err != nil {
		return false, err
	}

	project, limited := member.Project, isProjectOf(name, member.Project)
	if !limited {
		// Its owner may have changed the directory's project.
		if project, limited, err = p.limitedProject(name); err != nil {
			return false, err
		}
	}

	if limited {
		if err := p.setLimits(p.pool, project, projectquota.Amount{}); err != nil {
			return false, err
		}
	}

	// EPERM: an immutable directory, whose flag the caller clears.
	return false, errdefs.Ignore(p.leave(directory), unix.EPERM)
}

func (p *projects) Close() error { return p.pool.Close() }

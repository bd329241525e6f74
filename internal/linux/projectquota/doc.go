// Package projectquota limits directory trees by the project quotas of XFS and ext4: bytes and
// inodes that belong to one project id, which new files inherit from their directory.
//
// A filesystem enforces limits only if it is mounted with prjquota (ext4 also needs the features
// quota and project). Reading or setting a project's quota takes CAP_SYS_ADMIN in the initial user
// namespace, and Linux 5.14 (quotactl_fd).
//
// The package contains the system calls. Which project belongs to which directory is decided by its
// callers.
package projectquota

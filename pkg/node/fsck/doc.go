// Package fsck checks the filesystems of volumes with the filesystems' own tools.
//
// A check is made at staging (before the volume is mounted), offline (in place, while
// the volume is not used) or online (on a copy, made while the mounted filesystem is
// frozen). Only the check at staging repairs anything. The verdict of the newest check
// is a durable Result; the Checker also makes the checks that are due (--check-period).
//
// It contains the checks, their records and their schedule. It does not freeze
// filesystems or know how volumes are staged: the node does that, as Volumes.
package fsck

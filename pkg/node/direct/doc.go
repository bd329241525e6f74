// Package direct assigns volumes to virtual machines (Kata): the guest mounts the filesystem of the volume's
// loop device, and the host does not.
//
//   - Access is the way of access of such a volume, as those of package access;
//   - Assignments are what the runtime reads, and what is done about an assignment whose device is gone;
//   - Guard reports whether a guest may have a volume. The service asks it once for each other volume that
//     is staged.
package direct

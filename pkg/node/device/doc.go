// Package device attaches the images of volumes to loop devices, finds the devices again after a restart,
// and detaches them.
//
//   - Devices attaches and detaches. A device of a mounted image is detached by the kernel with its last
//     user, and is recorded until then; one of a raw-block or direct volume stays until it is detached.
//   - Raw knows the latter by the volumes' ids: they have no mount through which they could be found.
//   - Events is what it reports: an attachment before anything uses it, the end of one, and a device that
//     a program keeps in use.
//
// The caller is in an operation on the volume. What could not be observed is not absent: the functions
// return an error then.
package device

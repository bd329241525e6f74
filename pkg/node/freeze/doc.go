// Package freeze keeps the filesystems of volumes frozen while they are copied
// (FIFREEZE), and thaws them whatever happens: after an error, a panic, a timeout or the
// death of the driver.
//
// It contains the order in which filesystems are synced, recorded, frozen and thawed. It
// does not know how volumes are mounted: callers pass the open roots of filesystems.
package freeze

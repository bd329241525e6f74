// Package capability is the table of the capabilities that the plugin advertises:
// which service advertises each of them, which RPCs belong to it, and which are off
// because an administrator disabled them (--disable-capability).
//
// It contains capabilities of the CSI spec that the driver can have; it does not
// contain what they do, which belongs to the services.
package capability

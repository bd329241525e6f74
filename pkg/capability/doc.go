// Package capability is the one table of what the plugin advertises: where the
// CSI spec has it advertised, which RPCs come with it, and what is off because
// an administrator disabled it (--disable-capability).
//
// What may enter: capabilities of the spec that this driver can have. What
// they do belongs to the services, which ask a Set.
package capability

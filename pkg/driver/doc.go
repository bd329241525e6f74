// Package driver puts the services of a mode behind one socket: it builds
// them, listens, guards every call by the same interceptors, and drains.
//
// What may enter: what concerns all calls alike, and the order of start and
// end. What one call does belongs to its service.
package driver

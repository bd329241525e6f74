// Package csiclient is the other side of the socket: a container
// orchestrator (CO) reduced to what CSI asks of one. It knows in which order
// the calls of a volume's life come, what one call hands to the next, and what
// the CO has to do itself (make the staging directory and the target's parent).
//
// It is for the people's client (internal/cli/ctl), the demonstration (internal/cli/demo) and
// tests, and works with any CSI driver.
//
// What may enter: the CSI spec and gRPC. It never imports a room of the driver,
// so that whatever works through it works through the socket alone.
package csiclient

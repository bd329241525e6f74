// Package identity implements the CSI Identity service: the plugin's name and version,
// its capabilities, and its health. The health check is a function of the caller.
package identity

// Package monitoring tests what is in deploy/monitoring and docs/metrics.md
// against what a running driver exposes, and that an unhealthy volume is seen the same
// wherever people look.
package monitoring

// Package health tests the conditions of volumes and pools. Each condition is caused for
// real, appears and clears: by relists only and, where there is an event, by events only.
// All views agree: the RPCs of controller and node, the report, the condition of CSI v1.12.
package health

// Package statuspage serves the status page: one self-contained, read-only HTML page
// that periodically loads the health report (health.Report) as JSON.
package statuspage

// Package statuspage shows people in a browser what the driver knows about the
// health of its volumes: one page without anything from elsewhere, which asks
// for the report again and again.
//
// What may enter: how the report is looked at over HTTP. What is in it is
// pkg/health's, and nothing can be changed from here.
package statuspage

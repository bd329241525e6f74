// Package health caches the condition of volumes and pools: which are unhealthy,
// since when, and why.
//
// A Monitor keeps the newest Record of each of its subjects (volumes, pools, the
// state). Events of a Source and periodic relists trigger probes; only a probe
// decides what the condition is. RPCs answer from the cache, so that an unhealthy
// volume delays no caller. The design is that of Kubernetes' evented PLEG
// (KEP-3386), for volumes instead of pods.
//
// The package defines the reasons (a stable API), schedules probes, and encodes
// conditions for both dialects of the spec, for metrics and for reports. How a
// subject is probed is up to Config.Probe; kernel events are in internal/health/events.
package health

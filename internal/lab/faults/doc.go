// Package faults makes a driver fail on command: rules match calls, and delay, refuse, alter or lose
// them, or end the process at a named point of an operation. Authors of COs and sidecars test with
// them against real volumes.
//
//   - Rule is one rule; Parse reads rules of YAML and reports each mistake with its line.
//   - Injector has the active rules, counts their calls and hits, and acts on calls by its
//     interceptors and on operations by At.
//   - Follow keeps the rules of a file up to date; Service is the gRPC service of `touchstone ctl
//     fault`.
//
// The same rules, seed and order of calls give the same hits. docs/faults.md is the reference.
package faults

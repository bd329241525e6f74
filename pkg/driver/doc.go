// Package driver composes the process: from the configuration it builds the services
// of a mode, serves them on one socket with the same interceptors for every call, and
// drains them at the end.
//
// The background goroutines of the process, with their owner and their end:
//
//	goroutine                                 owner                           ends
//	gRPC server                               Driver.Run                      drain
//	HTTP server (metrics, status page)        Driver.Run                      drain
//	health.Monitor.Run, three views           components.begin                its context, at drain
//	  one per event source                    health.Monitor                  with the monitor
//	  probe workers                           health.Monitor                  without work; a hanging probe with its return
//	scheduled filesystem checks               pkg/node                        its context, at drain
//	attributes: poll and watch                pkg/node                        its context, at drain
//	cgroup limits: watch of new containers    internal/linux/cgroup           with the last limit
//	thaw retries                              pkg/node                        when thawed, or at drain
//	operations                                pkg/operation                   drain, at most --drain-timeout
//	coalescing windows                        pkg/operation/coalesce          the window, or drain
//	copies that are not ready yet             pkg/controller                  the copy, or drain
//	removals                                  pkg/pool/removal                drain
//	attempts to open failed pools             opener (pools.go)               opened, or drain
//	kubelet registration                      internal/kubernetes/registration its context, at drain
//	journal writer                            pkg/state                       Store.Close
package driver

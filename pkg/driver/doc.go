// Package driver composes the process: from the configuration it builds the services
// of a mode, serves them on one socket with the same interceptors for every call, and
// drains them at the end.
//
// The background goroutines of the process, with the file that starts them and their end.
// "ctx" is the context of Run, which ends with the first signal; "close" follows the drain.
//
//	gRPC and HTTP server, pools' first attempt  driver.go, pools.go                    drain; the attempt's end
//	monitors of the views                       services.go, health/monitor.go         ctx
//	  event sources, unhealthy batches          health/monitor.go, sources.go          ctx
//	  probe workers                             health/worker.go                       no work; a hanging one on return
//	  probe timers and watchdogs                health/probes.go, worker.go            monitor's end; their probe
//	notifications of a pool's change, per pool  services.go                            ctx
//	further attempts to open a pool             storage.go                             the attempt; cancelled at close
//	recovery of a pool opened later             storage.go                             completion, at most drain
//	scheduled checks, one at a time             node/fsck/scheduled.go                 ctx; a hanging one on return
//	attributes of shared pools (mode node)      node/tuning/watcher.go                 ctx
//	new containers of limited pods              internal/linux/cgroup/watch.go         close
//	thaw retries, freeze limits                 node/freeze/thaw.go, freezer.go        thawed, or close; the freeze
//	operations, one goroutine per key           operation/group.go                     the key's last operation
//	coalescing windows                          operation/coalesce/group.go            the change; closed early by drain
//	SnapshotMetadata streams, prefetch          controller/metadata, pool/changedblocks  the stream, or drain
//	removals, one worker per pool               pool/removal/queue.go                  ctx, after a limit
//	kubelet registration: run, watch, serve     internal/kubernetes/registration       ctx
//	state: lazy flush, compaction, retry        state/transaction.go, compact.go, commit.go  Store.Close
//	Probe's state check                         identity/checker.go                    its return
//	proxy mode: server, forwarded calls         forward.go, proxy/proxy.go             drain; the call
package driver

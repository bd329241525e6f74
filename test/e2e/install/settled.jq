# Of a list of objects, what is not yet as an example promises: a line each. A line
# that begins with "failed" will not become true by waiting. The promises:
# examples/README.md.

def name: "\(.kind) \(.metadata.name)";
def condition($type): [.status.conditions[]? | select(.type == $type)] | first;
def is($type): condition($type).status == "True";
def why($type): condition($type) | "\(.reason // "no reason"): \(.message // "")";
def bytes:
  capture("^(?<n>[0-9.]+)(?<unit>[A-Za-z]*)$")
  | (.n | tonumber) * ({"": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, Ki: 1024, Mi: 1048576, Gi: 1073741824, Ti: 1099511627776}[.unit]);
def expected: .metadata.annotations["touchstone.dev/expect"];
def of_a_job: any(.metadata.ownerReferences[]?; .kind == "Job");

def job:
  if is("Failed") then "failed: \(name): \(why("Failed"))"
  elif is("Complete") then empty
  else "\(name) is not complete" end;

def pod:
  if .metadata.deletionTimestamp then "\(name) is going"
  elif .status.phase == "Failed" then "failed: \(name): \(.status.reason // "") \([.status.containerStatuses[]?.state.terminated | select(.) | "\(.reason) \(.exitCode)"] | join(", "))"
  elif .status.phase == "Succeeded" or is("Ready") then empty
  else "\(name) is not ready: \(why("PodScheduled")) \([.status.containerStatuses[]?.state.waiting | select(.) | "\(.reason) \(.message // "")"] | join(", "))" end;

# What has to stay pending has been looked at by whoever could let it go on.
def pending($events):
  if .status.phase != "Pending" then "failed: \(name) is \(.status.phase), and not Pending"
  elif any($events[]; .type == "Warning") then empty
  else "nobody says why \(name) is pending" end;

def claim:
  if .status.phase != "Bound" then "\(name) is \(.status.phase)"
  elif (.status.capacity.storage | bytes) < (.spec.resources.requests.storage | bytes) then
    "\(name) has \(.status.capacity.storage) of \(.spec.resources.requests.storage)"
  elif is("Resizing") or is("FileSystemResizePending") then "\(name) is being resized"
  elif .status.allocatedResourceStatuses // {} != {} then "\(name): \(.status.allocatedResourceStatuses)"
  elif (.spec.volumeAttributesClassName // "") != (.status.currentVolumeAttributesClassName // "") or .status.modifyVolumeStatus then
    "\(name) is not of class \(.spec.volumeAttributesClassName) yet: \(.status.modifyVolumeStatus)"
  else empty end;

# What grows when it is used next.
def resize_pending: if is("FileSystemResizePending") then empty else "\(name) does not wait for its next use" end;

def snapshot:
  if .status.readyToUse then empty
  else "\(name) is not ready: \(.status.error.message // "no error")" end;

def workload:
  (.spec.replicas // 1) as $wanted
  | if .status.observedGeneration == .metadata.generation and .status.readyReplicas == $wanted
      and (.status.updatedReplicas // $wanted) == $wanted and (.status.replicas // $wanted) == $wanted then empty
    else "\(name): \(.status.readyReplicas // 0) of \($wanted) are ready" end;

.items as $all
| $all[]
| . as $object
| [$all[] | select(.kind == "Event" and .involvedObject.name == $object.metadata.name and .involvedObject.kind == $object.kind)] as $events
| if .kind == "Event" then empty
  elif expected == "Pending" then pending($events)
  elif expected == "FileSystemResizePending" then resize_pending
  elif .kind == "Job" then job
  elif .kind == "Pod" then (if of_a_job then empty else pod end)
  elif .kind == "PersistentVolumeClaim" then claim
  elif .kind == "VolumeSnapshot" or .kind == "VolumeGroupSnapshot" then snapshot
  else workload end

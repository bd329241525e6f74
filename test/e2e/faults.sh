#!/usr/bin/env bash
# shellcheck disable=SC2317 # scenarios are called by their names
# Has calls of the driver fail on command, and shows that Kubernetes and its sidecars
# do what they should then. Exit code 0: they do, but for bugs that are named by their
# numbers. 1: a scenario has failed, or --strict has reported a violation. 2: it could
# not be run.
#
# Wanted: a cluster for tests in which Touchstone runs with --enable-faults,
# --call-log=ring and --strict, and with the sidecars provisioner, attacher, resizer
# and snapshotter; its socket on this machine; jq. The rules affect all volumes of the
# driver. Settings, as environment variables:
#
#   KUBECONFIG   the cluster
#   KUBECTL      (kubectl) how kubectl is called
#   ENDPOINT     (unix:///run/touchstone/csi.sock) the driver's socket
#   TOUCHSTONE   (touchstone) the binary, for touchstone ctl
#   DRIVER_NAME  (csi.touchstone.dev)
#   FSTYPE       (xfs) of the volumes; the kernel has to be able to grow it online
#   IMAGE        (busybox) an image with sh and sleep for pods
#   TIMEOUT      (240) seconds for each wait
#   SCENARIOS    (all) names; attach-limit wants nodeAllocatableUpdatePeriodSeconds in
#                the CSIDriver, health a kubelet with the feature gate CSIVolumeHealth
#
# A scenario that waits for the deadline of a sidecar takes as long as its --timeout.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
KUBECTL=${KUBECTL:-kubectl}
ENDPOINT=${ENDPOINT:-unix:///run/touchstone/csi.sock}
TOUCHSTONE=${TOUCHSTONE:-touchstone}
DRIVER_NAME=${DRIVER_NAME:-csi.touchstone.dev}
FSTYPE=${FSTYPE:-xfs}
IMAGE=${IMAGE:-busybox}
TIMEOUT=${TIMEOUT:-240}
namespace=touchstone-e2e-faults # also the name of the classes
all='create-lost create-final create-infeasible create-deleted create-exhausted delete-lost
  attach-exhausted attach-exceeded attach-limit detach-lost
  stage-final stage-transient stage-always-final stage-always-transient
  unstage-final unstage-transient publish-lost
  expand-infeasible expand-not-final expand-node-infeasible
  snapshot-retried snapshot-never-ready snapshot-deleted snapshot-awaited health'
SCENARIOS=${SCENARIOS:-$all}

# shellcheck source=test/e2e/faults/functions.sh
. "$here/faults/functions.sh"

# CreateVolume makes the volume; its response is lost by two resets and a deadline.
# external-provisioner repeats the call with the same name: one volume exists.
create_lost() {
  add_rules lost-response
  claim data
  bound data
  called 4 CreateVolume --volume "$(volume data)"
  is "$(made)" 1 "volumes"
}

# CreateVolume fails with a final code. external-provisioner reports it and repeats the
# call; when the claim is deleted, there is nothing to delete.
create_final() {
  add_rules create-always-final
  claim data
  called 2 CreateVolume --code INTERNAL --volume "$(volume data)"
  event data ProvisioningFailed "fake error"
  remove pvc/data
  is "$(calls DeleteVolume)" 0 "DeleteVolume"
  is "$(made)" 0 "volumes"
}

# CreateVolume fails with INVALID_ARGUMENT, which is infeasible. external-provisioner
# reports it, and does not repeat the call at once.
create_infeasible() {
  add_rules create-infeasible
  claim data
  called 1 CreateVolume --code INVALID_ARGUMENT --volume "$(volume data)"
  event data ProvisioningFailed "fake error"
  is "$(calls CreateVolume)" 1 "CreateVolume"
  remove pvc/data
  is "$(made)" 0 "volumes"
}

# CreateVolume makes the volume and fails with DEADLINE_EXCEEDED; the claim is deleted.
# external-provisioner has to repeat the call until it succeeds, and delete the volume.
create_deleted() {
  add_rules create-never-answered
  claim data
  local volume
  volume=$(volume data)
  called 1 CreateVolume --volume "$volume"
  remove pvc/data
  is "$(made)" 1 "volumes"
  clear_rules
  called 1 CreateVolume --code OK --volume "$volume"
  called 1 DeleteVolume --code OK --volume "$volume"
  is "$(made)" 0 "volumes"
}

# CreateVolume finds no capacity where the scheduler has put a pod. external-provisioner
# withdraws the node, and the pod is scheduled again.
create_exhausted() {
  add_rules create-exhausted-once
  claim data "$namespace-late"
  pod user data
  running user
  called 1 CreateVolume --code RESOURCE_EXHAUSTED --volume "$(volume data)"
  called 1 CreateVolume --code OK --volume "$(volume data)"
  event data ProvisioningFailed "fake error"
}

# DeleteVolume deletes the volume and fails twice. external-provisioner repeats it, and
# the PersistentVolume stays until it succeeds.
delete_lost() {
  add_rules delete-response-lost
  claim data
  bound data
  local volume
  volume=$(volume data)
  remove pvc/data
  called 2 DeleteVolume --code UNAVAILABLE --volume "$volume"
  called 1 DeleteVolume --code OK --volume "$volume"
  state "pv/$volume" delete
}

# ControllerPublishVolume attaches the volume and fails twice with RESOURCE_EXHAUSTED.
# The attachment has this code, external-attacher repeats the call, and the pod runs.
attach_exhausted() {
  add_rules attach-exhausted-twice
  claim data
  pod user data
  await "the attachment has the error 8" attachment_error_is 8
  running user
  is "$(calls ControllerPublishVolume --code RESOURCE_EXHAUSTED)" 2 "failed ControllerPublishVolume"
  attachment_error_is '' || fail "the attachment still has an error"
}

# ControllerPublishVolume attaches the volume and always fails with RESOURCE_EXHAUSTED.
# The kubelet rejects the pod; the volume is detached, since it may be attached.
attach_exceeded() {
  add_rules attach-limit-exceeded
  claim data
  pod user data
  state pod/user 'jsonpath={.status.phase}=Failed'
  is "$(kube get pod user -o jsonpath='{.status.reason}')" VolumeAttachmentLimitExceeded "the pod's reason"
  remove pod/user
  called 1 ControllerUnpublishVolume --code OK --volume "$(volume data)"
}

# NodeGetInfo returns another max_volumes_per_node. The kubelet updates the CSINode
# without a new registration, and the scheduler keeps to it.
attach_limit() {
  local usual
  usual=$(limit)
  claim first
  pod first first
  running first
  add_rules attach-limit-of-one
  await "the CSINode has a limit of 1" limit_is 1
  claim second
  bound second
  pod second second
  event second FailedScheduling "exceed max volume count"
  clear_rules
  await "the CSINode has a limit of $usual" limit_is "$usual"
  running second
}

# ControllerUnpublishVolume detaches the volume and fails twice. external-attacher repeats
# it, and the VolumeAttachment stays until it succeeds.
detach_lost() {
  add_rules detach-response-lost
  claim data
  pod user data
  running user
  remove pod/user
  called 2 ControllerUnpublishVolume --code UNAVAILABLE --volume "$(volume data)"
  called 1 ControllerUnpublishVolume --code OK --volume "$(volume data)"
}

# NodeStageVolume fails three times. The kubelet repeats it, and the pod runs.
staged_later() { # staged_later CODE
  claim data
  pod user data
  running user
  is "$(calls NodeStageVolume --code "$1")" 3 "failed NodeStageVolume"
  is "$(calls NodeStageVolume --code OK)" 1 "successful NodeStageVolume"
  event user FailedMount "fake error"
}
stage_final() { add_rules stage-final-error && staged_later INVALID_ARGUMENT; }
stage_transient() { add_rules stage-transient-error && staged_later DEADLINE_EXCEEDED; }

# NodeStageVolume always fails with a final code, and the pod is deleted. The volume is
# not staged: the kubelet does not unstage it.
stage_always_final() {
  add_rules stage-always-final
  claim data
  pod user data
  called 1 NodeStageVolume --code INVALID_ARGUMENT
  remove pod/user
  called 1 ControllerUnpublishVolume --code OK --volume "$(volume data)"
  is "$(calls NodeUnstageVolume)" 0 "NodeUnstageVolume"
}

# NodeStageVolume always fails with a code that is not final. The volume may be staged:
# the kubelet has to unstage it before it is detached.
stage_always_transient() {
  add_rules stage-always-transient
  claim data
  pod user data
  called 1 NodeStageVolume --code DEADLINE_EXCEEDED
  remove pod/user
  called 1 ControllerUnpublishVolume --code OK --volume "$(volume data)"
  is "$(ctl calls --since-call "$since" --code OK -o json |
    jq -r '[.[].method | sub(".*/"; "") | select(test("Unstage|Unpublish"))] | unique_by(.) | join(" ")')" \
    "ControllerUnpublishVolume NodeUnstageVolume" "calls"
  is "$(ctl calls --since-call "$since" --code OK -o json |
    jq '([.[] | select(.method | endswith("NodeUnstageVolume")).call] | first) <
        ([.[] | select(.method | endswith("ControllerUnpublishVolume")).call] | first)')" true "unstaged before it is detached"
}

# NodeUnstageVolume fails, and a second pod uses the volume. The volume may be unstaged:
# the kubelet has to stage it again for that pod.
staged_again() { # staged_again CODE
  claim data
  pod first data
  running first
  remove pod/first
  called 1 NodeUnstageVolume --code "$1" --volume "$(volume data)"
  pod second data
  running second
  is "$(calls NodeStageVolume --code OK)" 2 "successful NodeStageVolume"
  clear_rules
}
unstage_final() { add_rules unstage-final-error && staged_again INVALID_ARGUMENT; }
unstage_transient() { add_rules unstage-transient-error && staged_again DEADLINE_EXCEEDED; }

# NodePublishVolume mounts the volume, and its response is lost twice. The kubelet repeats
# it; what was mounted is unmounted with the pod.
publish_lost() {
  add_rules publish-response-lost
  claim data
  pod user data
  running user
  called 3 NodePublishVolume --volume "$(volume data)"
  remove pod/user
  called 1 NodeUnpublishVolume --code OK --volume "$(volume data)"
}

# ControllerExpandVolume is infeasible. The claim says so, and a user may ask for less:
# the volume gets that size.
expand_infeasible() {
  claim data
  pod user data
  running user
  add_rules expand-controller-infeasible
  expand data 1Gi
  state pvc/data 'jsonpath={.status.allocatedResourceStatuses.storage}=ControllerResizeInfeasible'
  event data VolumeResizeFailed "fake error"
  expand data 384Mi
  state pvc/data 'jsonpath={.status.capacity.storage}=384Mi'
  called 1 NodeExpandVolume --code OK --volume "$(volume data)"
  await "the claim is not being resized" not_resizing
}

# ControllerExpandVolume expands the volume and fails three times with codes that are not
# final. external-resizer repeats it, and the claim gets its size.
expand_not_final() {
  claim data
  pod user data
  running user
  add_rules resizer-not-final
  expand data 384Mi
  state pvc/data 'jsonpath={.status.capacity.storage}=384Mi'
  called 4 ControllerExpandVolume --volume "$(volume data)"
  await "the claim is not being resized" not_resizing
}

# NodeExpandVolume is infeasible. The claim says so, until external-resizer has repeated
# ControllerExpandVolume, and keeps its old size. When the node can expand the volume, the
# claim gets its size. Asking for less is no remedy, as the volume has been expanded:
# kubernetes-csi/external-resizer#187.
expand_node_infeasible() {
  claim data
  pod user data
  running user
  add_rules expand-node-infeasible
  expand data 1Gi
  state pvc/data 'jsonpath={.status.allocatedResourceStatuses.storage}=NodeResizeInfeasible'
  event user VolumeResizeFailed "fake error"
  is "$(kube get pvc data -o jsonpath='{.status.capacity.storage}')" 320Mi "the claim's capacity"
  clear_rules
  state pvc/data 'jsonpath={.status.capacity.storage}=1Gi'
  await "the claim is not being resized" not_resizing
}

restored='dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: taken}'

# CreateSnapshot fails three times. external-snapshotter repeats it: one snapshot exists.
snapshot_retried() {
  claim data
  bound data
  add_rules snapshot-retried
  snapshot taken data
  state volumesnapshot/taken 'jsonpath={.status.readyToUse}=true'
  called 3 CreateSnapshot --code DEADLINE_EXCEEDED
  is "$(made)" 2 "volumes and snapshots"
}

# A snapshot is not ready, and then it is. external-snapshotter asks again and again, and
# external-provisioner restores the snapshot only once it is ready.
snapshot_never_ready() {
  claim data
  bound data
  add_rules snapshot-never-ready
  snapshot taken data
  called 3 CreateSnapshot --code OK
  is "$(kube get volumesnapshot taken -o jsonpath='{.status.readyToUse}')" false "readyToUse"
  claim restored "$namespace" "$restored"
  event restored ProvisioningFailed "not Ready"
  is "$(calls CreateVolume --volume "$(volume restored)")" 0 "CreateVolume of the claim"
  clear_rules
  state volumesnapshot/taken 'jsonpath={.status.readyToUse}=true'
  bound restored
}

# CreateSnapshot takes the snapshot and fails with DEADLINE_EXCEEDED; the VolumeSnapshot is
# deleted. external-snapshotter has to repeat the call until it succeeds, and delete the
# snapshot.
snapshot_deleted() {
  claim data
  bound data
  add_rules snapshot-never-answered
  snapshot taken data
  called 1 CreateSnapshot --code DEADLINE_EXCEEDED
  kube delete volumesnapshot/taken --wait=false >/dev/null
  called 4 CreateSnapshot --code DEADLINE_EXCEEDED
  clear_rules
  called 1 CreateSnapshot --code OK
  if ! ctl --timeout 30s calls wait --method DeleteSnapshot --code OK --since-call "$since" >/dev/null 2>&1; then
    known_bug kubernetes-csi/external-snapshotter#1388
    # The bug ends with the sidecar, and that with its connection.
    add_rules snapshotter-restarts
    snapshot another data
    state volumesnapshot/another 'jsonpath={.status.readyToUse}=true'
    remove volumesnapshot/another
  fi
  state volumesnapshot/taken delete
  is "$(made)" 1 "volumes and snapshots"
}

# A snapshot that is not ready is deleted while a claim waits for it, and then the claim is
# deleted. snapshot-controller keeps the snapshot for the claim, and then has to delete it.
snapshot_awaited() {
  claim data
  bound data
  add_rules snapshot-never-ready
  snapshot taken data
  called 1 CreateSnapshot --code OK
  claim restored "$namespace" "$restored"
  event restored ProvisioningFailed "not Ready"
  kube delete volumesnapshot/taken --wait=false >/dev/null
  event taken SnapshotDeletePending "being used to restore"
  is "$(calls DeleteSnapshot)" 0 "DeleteSnapshot"
  remove pvc/restored
  state volumesnapshot/taken delete
  called 1 DeleteSnapshot --code OK
}

abnormal_is() { # abnormal_is VALUE: what the kubelet counts
  $KUBECTL get --raw "/api/v1/nodes/$(kube get pod user -o 'jsonpath={.spec.nodeName}')/proxy/metrics" |
    grep -F 'kubelet_volume_stats_health_status_abnormal{' | grep -F "namespace=\"$namespace\"" |
    grep -F 'persistentvolumeclaim="data"' | grep -q " $1\$"
}
pod_reports() { # pod_reports REASONS: those of the volume's conditions in the pod's status
  [ "$(kube get pod user -o 'jsonpath={.status.volumeHealth[?(@.name=="data")].healthConditions[*].reason}')" = "$1" ]
}

# A condition is raised and cleared. It is in the pod's status as long as it is there. Before
# Kubernetes 1.37 the pod gets an event, and the kubelet's metric is 1.
health() {
  claim data
  pod user data
  running user
  if [ "$($KUBECTL version -o json | jq -r '.serverVersion.minor | sub("[^0-9].*"; "")')" -ge 37 ]; then
    add_rules health-degraded
    await "the pod's status has the condition" pod_reports OnCommand
    clear_rules
    await "the pod's status has no condition" pod_reports ''
    return
  fi
  await "the kubelet counts the volume as healthy" abnormal_is 0
  add_rules health-degraded
  event user VolumeConditionAbnormal "raised on command"
  await "the kubelet counts the volume as unhealthy" abnormal_is 1
  clear_rules
  await "the kubelet counts the volume as healthy" abnormal_is 0
}

check_wanted() {
  local name
  command -v jq >/dev/null || cannot "there is no jq"
  command -v "$TOUCHSTONE" >/dev/null || cannot "there is no $TOUCHSTONE: set TOUCHSTONE"
  $KUBECTL get csidriver "$DRIVER_NAME" >/dev/null || cannot "the cluster has no CSIDriver $DRIVER_NAME: set KUBECONFIG, KUBECTL, DRIVER_NAME"
  [ -z "$(ctl fault list -o name)" ] || cannot "the driver has fault rules: clear them first (touchstone ctl fault clear)"
  { ctl calls counts && ctl violations --jq empty; } >/dev/null || cannot "start the driver with --enable-faults --call-log=ring --strict"
  for name in $SCENARIOS; do
    declare -F "${name//-/_}" >/dev/null || cannot "there is no scenario $name; there are: $all"
  done
}

classes() {
  $KUBECTL delete namespace "$namespace" --ignore-not-found --wait >/dev/null # of a run that was killed
  $KUBECTL create namespace "$namespace" --dry-run=client -o yaml | $KUBECTL apply -f - >/dev/null
  local suffix binding
  for suffix in '' -late; do
    binding=Immediate
    [ -z "$suffix" ] || binding=WaitForFirstConsumer
    cat <<Y
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: $namespace$suffix}
provisioner: $DRIVER_NAME
allowVolumeExpansion: true
volumeBindingMode: $binding
parameters: {csi.storage.k8s.io/fstype: $FSTYPE}
Y
  done | $KUBECTL apply -f - >/dev/null
  $KUBECTL apply -f - >/dev/null <<Y
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: $namespace}
driver: $DRIVER_NAME
deletionPolicy: Delete
Y
}

finish() {
  local status=$?
  rm -f "$bugs"
  ctl fault clear >/dev/null 2>&1 || true
  $KUBECTL delete namespace "$namespace" --ignore-not-found --wait >/dev/null 2>&1 || true
  $KUBECTL delete storageclass "$namespace" "$namespace-late" --ignore-not-found >/dev/null 2>&1 || true
  $KUBECTL delete volumesnapshotclass "$namespace" --ignore-not-found >/dev/null 2>&1 || true
  exit "$status"
}

check_wanted
bugs=$(mktemp)
trap finish EXIT
classes
kube wait serviceaccount/default --for=create --timeout="${TIMEOUT}s" >/dev/null
ctl violations --clear >/dev/null
code=0
for name in $SCENARIOS; do
  before=$(driver_objects)
  since=$(last_call)
  began=$SECONDS
  : >"$bugs"
  # Not in a condition, in which set -e has no effect.
  set +e
  (set -e && "${name//-/_}" && settle)
  status=$?
  set -e
  if [ "$status" = 0 ] && [ -s "$bugs" ]; then
    say "$name: passed but for $(paste -sd ' ' "$bugs") ($((SECONDS - began)) s)"
  elif [ "$status" = 0 ]; then
    say "$name: passed ($((SECONDS - began)) s)"
  else
    say "$name: FAILED ($((SECONDS - began)) s)"
    code=1
    (settle) || true
  fi
done
if ! violations=$(ctl violations -o wide); then
  say "Kubernetes has violated the CSI spec:"
  printf '%s\n' "$violations"
  code=1
fi
exit "$code"

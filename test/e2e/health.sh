#!/usr/bin/env bash
# Shows that a kubelet consumes the health of volumes and storage: for each fault, what
# Kubernetes reports after it, and that this goes after the cure.
#
#   missing    the image is moved out of its pool     BackingFileMissing
#   full       a pod fills the volume                 OutOfCapacity
#   inodes     a pod makes files until none is free   InodesExhausted
#   read-only  the filesystem is remounted            ReadOnlyRemount
#   pool       no file can be made in the pool        PoolReadOnly, of the storage
#
# Kubernetes reports them in status.volumeHealth of the pod and status.storageHealth of the
# CSINode from 1.37 on. Earlier versions have an event and a metric, and nothing of storage.
#
# Wanted: a cluster with the feature gate CSIVolumeHealth (API server and kubelet), a node on
# which Touchstone is registered, root there (this script changes files of the pool and mounts),
# and jq. Settings, as environment variables:
#
#   KUBECONFIG   the cluster
#   KUBECTL      how kubectl is called (kubectl)
#   DRIVER_NAME  (csi.touchstone.dev)
#   POOL         the directory that has images/ in it (/var/lib/touchstone/pool), on ext4, xfs or btrfs
#   IMAGE        an image with sh, dd and sleep for the pod (busybox)
#   TIMEOUT      seconds for each step (240: the kubelet asks about once a minute)
#   FAULTS       (all) some of them
set -euo pipefail

KUBECTL=${KUBECTL:-kubectl}
DRIVER_NAME=${DRIVER_NAME:-csi.touchstone.dev}
POOL=${POOL:-/var/lib/touchstone/pool}
IMAGE=${IMAGE:-busybox}
TIMEOUT=${TIMEOUT:-240}
FAULTS=${FAULTS:-missing full inodes read-only pool}
namespace=touchstone-e2e-health

say() { echo "e2e-health: $*"; }
die() { say "$*" >&2; exit 1; }
kube() { $KUBECTL -n "$namespace" "$@"; } # KUBECTL may have arguments

cannot() { echo "e2e-health: $*" >&2; exit 2; }
[ "$(id -u)" = 0 ] || cannot "run it as root on the node: it moves a file of the pool"
[ -d "$POOL/images" ] || cannot "there is no $POOL/images: set POOL to the pool's directory on this node"
minor=$(kube version -o json | jq -er '.serverVersion.minor | sub("[^0-9].*"; "") | tonumber') ||
  cannot "the cluster does not answer: set KUBECONFIG (and KUBECTL); jq is wanted too"

cure='' # of the fault that there is
finish() {
  local status=$?
  [ -z "$cure" ] || "$cure" || true
  $KUBECTL delete namespace "$namespace" --ignore-not-found --wait >/dev/null 2>&1 || true
  $KUBECTL delete storageclass "$namespace" --ignore-not-found >/dev/null 2>&1 || true
  exit "$status"
}
trap finish EXIT

await() { # await WHAT COMMAND...
  local what=$1 until=$((SECONDS + TIMEOUT)) began=$SECONDS
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$until" ] || die "after $TIMEOUT s still not: $what"
    sleep 1
  done
  say "$what (after $((SECONDS - began)) s)"
}

$KUBECTL apply -f - >/dev/null <<Y
apiVersion: v1
kind: Namespace
metadata: {name: $namespace}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: $namespace}
provisioner: $DRIVER_NAME
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: $namespace}
spec:
  storageClassName: $namespace
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 64Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: user, namespace: $namespace}
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: user
      image: $IMAGE
      imagePullPolicy: IfNotPresent
      command: [sh, -c, "echo written > /data/file && sleep 86400"]
      volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
Y

running() { [ "$(kube get pod user -o 'jsonpath={.status.phase}')" = Running ]; }
await "a pod uses a volume" running

node=$(kube get pod user -o 'jsonpath={.spec.nodeName}')
volume=$(kube get pv "$(kube get pvc data -o 'jsonpath={.spec.volumeName}')" -o 'jsonpath={.spec.csi.volumeHandle}')
image=$POOL/images/$volume.img
[ -f "$image" ] || cannot "volume $volume is not at $image: is this the node $node, and POOL its pool?"

if [ "$minor" -ge 37 ]; then
  # conditions: the reasons that the pod's volume has, and those of the driver's storage on the node.
  conditions() {
    kube get pod user -o json | jq -r '.status.volumeHealth[]? | select(.name == "data") | .healthConditions[]?.reason'
    $KUBECTL get csinode "$node" -o json |
      jq -r --arg name "$DRIVER_NAME" '.status.storageHealth[]? | select(.name == $name) | .healthConditions[]?.reason'
  }
  reported() { conditions | grep -qFx "$1"; }
  healthy() { [ -z "$(conditions)" ]; }
else
  abnormal_is() { # abnormal_is VALUE: what the kubelet counts
    $KUBECTL get --raw "/api/v1/nodes/$node/proxy/metrics" |
      grep -F 'kubelet_volume_stats_health_status_abnormal{' | grep -F "namespace=\"$namespace\"" |
      grep -F 'persistentvolumeclaim="data"' | grep -q " $1\$"
  }
  has_event() { # has_event TEXT
    kube get events --field-selector involvedObject.name=user,reason=VolumeConditionAbnormal -o 'jsonpath={.items[*].message}' | grep -qF "$1"
  }
  reported() { has_event "$1" && abnormal_is 1; }
  healthy() { abnormal_is 0; }
  FAULTS=${FAULTS/pool/}
fi
in_pod() { kube exec user -- sh -c "$1" >/dev/null 2>&1; }

away=$POOL/images/.$volume.away
missing() { mv "$image" "$away"; }
missing_cure() { mv "$away" "$image"; }
# The writes end with one that fails.
full() { in_pod 'dd if=/dev/zero of=/data/full bs=1M; sync; true'; }
full_cure() { in_pod 'rm -f /data/full'; }
# shellcheck disable=SC2016 # the pod's shell expands it
inodes() { in_pod 'mkdir /data/files; i=0; while true >/data/files/$i; do i=$((i+1)); done; true'; }
inodes_cure() { in_pod 'rm -rf /data/files'; }
remount() {
  local device
  device=$(losetup --associated "$image" --noheadings --output NAME)
  mount -o "remount,$1" "$(findmnt --first-only --noheadings --output TARGET --source "$device")"
}
read_only() { remount ro; }
read_only_cure() { remount rw; }
pool() { chattr +i "$POOL/scratch"; }
pool_cure() { chattr -i "$POOL/scratch"; }

# show FAULT REASON
show() {
  local name=${1//-/_}
  case " $FAULTS " in *" $1 "*) ;; *) return 0 ;; esac
  cure=${name}_cure
  "$name"
  say "fault: $1"
  await "Kubernetes reports $2" reported "$2"
  "$cure"
  cure=''
  await "Kubernetes reports nothing after the cure" healthy
}

await "Kubernetes reports nothing of a healthy volume" healthy
show missing BackingFileMissing
show full OutOfCapacity
show inodes InodesExhausted
show read-only ReadOnlyRemount
show pool PoolReadOnly
say "all held"

#!/usr/bin/env bash
# Shows that a kubelet consumes the health of a volume: an image is moved out of
# its pool while a pod uses it, and the pod gets the event, and the kubelet the
# metric, that say so; the image is moved back, and the metric says that, too.
#
# Wanted: a cluster whose kubelet has the feature gate CSIVolumeHealth, a node on
# which Touchstone is registered, and root there (this script moves a file of the
# pool). Settings, as environment variables:
#
#   KUBECONFIG   the cluster
#   KUBECTL      how kubectl is called (kubectl)
#   DRIVER_NAME  (csi.touchstone.dev)
#   POOL         the directory that has images/ in it (/var/lib/touchstone/pool)
#   IMAGE        an image with sh and sleep for the pod (busybox)
#   TIMEOUT      seconds for each step (240: the kubelet looks about once a minute)
set -euo pipefail

KUBECTL=${KUBECTL:-kubectl}
DRIVER_NAME=${DRIVER_NAME:-csi.touchstone.dev}
POOL=${POOL:-/var/lib/touchstone/pool}
IMAGE=${IMAGE:-busybox}
TIMEOUT=${TIMEOUT:-240}
namespace=touchstone-e2e-health

say() { echo "e2e-health: $*"; }
die() { say "$*" >&2; exit 1; }
kube() { $KUBECTL -n "$namespace" "$@"; } # KUBECTL may have arguments

cannot() { echo "e2e-health: $*" >&2; exit 2; }
[ "$(id -u)" = 0 ] || cannot "run it as root on the node: it moves a file of the pool"
[ -d "$POOL/images" ] || cannot "there is no $POOL/images: set POOL to the pool's directory on this node"
kube version >/dev/null || cannot "the cluster does not answer: set KUBECONFIG (and KUBECTL)"

image='' away=''
finish() {
  local status=$?
  [ -z "$away" ] || [ ! -e "$away" ] || mv "$away" "$image"
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

abnormal_is() { # abnormal_is VALUE: what the kubelet counts
  $KUBECTL get --raw "/api/v1/nodes/$node/proxy/metrics" |
    grep -F 'kubelet_volume_stats_health_status_abnormal{' | grep -F "namespace=\"$namespace\"" |
    grep -F 'persistentvolumeclaim="data"' | grep -q " $1\$"
}
events() { # events JSONPATH: of the pod's volume that is not healthy
  kube get events --field-selector involvedObject.name=user,reason=VolumeConditionAbnormal -o "jsonpath=$1"
}
has_event() { [ -n "$(events '{.items[*].message}')" ]; }

await "the kubelet counts the volume as healthy" abnormal_is 0
if has_event; then die "there is a VolumeConditionAbnormal event of a healthy volume"; fi

away=$POOL/images/.$volume.away
mv "$image" "$away"
say "moved the volume's image away"

await "the pod has the event VolumeConditionAbnormal" has_event
events '{.items[0].message}{"\n"}'
await "kubelet_volume_stats_health_status_abnormal is 1" abnormal_is 1

mv "$away" "$image"
say "moved it back"
await "kubelet_volume_stats_health_status_abnormal is 0 again" abnormal_is 0
say "all held"

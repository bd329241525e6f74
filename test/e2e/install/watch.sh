# shellcheck shell=bash
# What is so on the node itself, as seen by a pod that is there for the whole time:
# mounts, devices, processes. Its mounts follow the node's, so one that was taken away
# and made again shows: it has another id.

watch_node() {
  kube apply -f - >/dev/null <<Y
apiVersion: v1
kind: Namespace
metadata:
  name: $prefix-watch
  labels: {pod-security.kubernetes.io/enforce: privileged}
---
apiVersion: v1
kind: Pod
metadata: {name: watch, namespace: $prefix-watch}
spec:
  hostPID: true
  terminationGracePeriodSeconds: 0
  tolerations: [{operator: Exists}]
  containers:
    - name: watch
      image: $(image now)
      imagePullPolicy: IfNotPresent
      command: [sleep, infinity]
      securityContext: {privileged: true, runAsUser: 0}
      volumeMounts:
        - {name: kubelet, mountPath: $KUBELET_DIR, mountPropagation: HostToContainer}
        - {name: pool, mountPath: $pool, mountPropagation: HostToContainer}
  volumes:
    - {name: kubelet, hostPath: {path: $KUBELET_DIR}}
    - {name: pool, hostPath: {path: $pool, type: DirectoryOrCreate}}
Y
  kube -n "$prefix-watch" wait --for condition=Ready pod/watch --timeout "${TIMEOUT}s" >/dev/null || die "the pod that watches the node does not start"
}

on_node() { kube -n "$prefix-watch" exec watch -- "$@"; }

# driver_mounts: id, device, root, place, filesystem of all that the driver has mounted.
driver_mounts() {
  on_node cat /proc/self/mountinfo | awk -v dir="$KUBELET_DIR/" '
    index($5, dir) == 1 && (index($5, "/plugins/kubernetes.io/csi/") || index($5, "/volumes/kubernetes.io~csi/") || index($5, "/volumeDevices/")) {
      for (i = 7; $i != "-"; i++);
      print $1, $3, $4, $5, $6, $(i + 1), $(i + 2)
    }'
}
# devices: loop devices on images of volumes, where the pool has them.
devices() {
  # shellcheck disable=SC2016 # expanded there
  on_node sh -c '[ ! -e "$1/pool.img" ] || set "$1/mounted"
    grep -H "^$1/images/" /sys/block/loop*/loop/backing_file 2>/dev/null || true' sh "$pool/pool"
}

# The pool itself may be mounted from somewhere; in it an embedded one would be.
pool_mounts() { on_node cat /proc/self/mountinfo | awk -v dir="$pool/" 'index($5, dir) == 1'; }

registrations() { on_node find "$KUBELET_DIR/plugins_registry" -name "*$driver*"; }

# container_id POD
container_id() {
  kube -n "$namespace" get pod "$1" -o json |
    jq -er '.status.containerStatuses[] | select(.name == "touchstone") | .containerID | sub("^.*://"; "")'
}

# kill_driver POD: its process alone, at once; the kubelet starts the container again.
kill_driver() {
  # shellcheck disable=SC2016 # expanded there
  on_node sh -c '
    for each in $(grep -l "$1" /proc/[0-9]*/cgroup 2>/dev/null); do
      pid=${each#/proc/} && pid=${pid%/cgroup}
      [ "$(cat "/proc/$pid/comm")" = touchstone ] && kill -KILL "$pid" && exit 0
    done
    exit 1' sh "$(container_id "$1")" || die "the driver's process in $1 is not to be found"
}

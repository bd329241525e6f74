# shellcheck shell=bash
# Applications that write all the time, what is done to the driver meanwhile, and
# how it is known that they did not notice.

writers=$prefix-writers
kinds='ext4 xfs btrfs directory block'

# What a writer does: a line each tenth of a second, synced and read back. It ends with
# an error if any of that fails, if it was kept from it for long, or if what is at its
# path is not what it was at the start.
writer_script() {
  cat <<'Y'
set -eu
fail() { echo "error: $*" >&2; exit 1; }
now() { read -r up rest < /proc/uptime; echo "${up%.*}"; }
what() { if [ -b /data ]; then echo block; else stat -c '%d %i' /data; fi; }
was=$(what) n=0 last=$(now) longest=0
while :; do
  n=$((n + 1))
  if [ -b /data ]; then
    printf '%-511s\n' "$n" | dd of=/data bs=512 seek=$((n % 1000)) conv=notrunc,fsync 2>/tmp/dd || fail "$(cat /tmp/dd)"
    back=$(dd if=/data bs=512 skip=$((n % 1000)) count=1 2>/dev/null | tr -d ' ')
  else
    echo "$n" > /data/new && sync /data/new && mv /data/new /data/line || fail "line $n was not written"
    read -r back < /data/line || fail "line $n can not be read"
  fi
  [ "$back" = "$n" ] || fail "wrote $n and read $back"
  [ "$(what)" = "$was" ] || fail "$(what) is at /data, and $was was"
  t=$(now)
  [ $((t - last)) -le "$LOST" ] || fail "kept from writing for $((t - last)) s before line $n"
  [ $((t - last)) -le "$longest" ] || longest=$((t - last))
  last=$t
  echo "$n $longest" > /tmp/writing && mv /tmp/writing /tmp/written
  sleep 0.1
done
Y
}

# writer NAME [CLASS]: a claim, and a pod that writes to it. One called block has the device.
writer() {
  local class=${2:-$1} mode=Filesystem where=volumeMounts path=mountPath
  [ "$1" != block ] || { class=ext4 mode=Block where=volumeDevices path=devicePath; }
  cat <<Y
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: $1, namespace: $writers}
spec:
  storageClassName: touchstone-$class
  accessModes: [ReadWriteOnce]
  volumeMode: $mode
  resources: {requests: {storage: 300Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: $1, namespace: $writers}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
    - name: writer
      image: $BUSYBOX
      imagePullPolicy: IfNotPresent
      command: [sh, -c]
      args:
        - |
$(writer_script | sed 's/^/          /')
      env: [{name: LOST, value: "$LOST"}]
      readinessProbe:
        exec: {command: [test, -s, /tmp/written]}
        periodSeconds: 1
      $where: [{name: data, $path: /data}]
  volumes:
    - {name: data, persistentVolumeClaim: {claimName: $1}}
---
Y
}

writers_write() {
  local each
  if [ -z "$(kube get namespace "$writers" --ignore-not-found -o name)" ]; then
    kube create namespace "$writers" >/dev/null
    for each in $kinds; do writer "$each"; done | kube apply -f - >"$OUT/apply.log"
  fi
  await "all writers write" settled "$writers"
  writers_are_well
  proved "pods write to volumes of each kind ($kinds)"
}

# lines: how far each writer is, and for how many seconds it had to wait at most.
lines() {
  local each
  for each in $kinds; do echo "$each $(kube -n "$writers" exec "$each" -- cat /tmp/written)"; done
}

further() { # further LINES: each writer has written more than that
  local each before longest n
  while read -r each before longest; do
    read -r n longest < <(kube -n "$writers" exec "$each" -- cat /tmp/written)
    [ "$n" -gt "$before" ] || { echo "$each is still at $n, and had to wait for $longest s before" && return 1; }
  done <<<"$1"
}

# writers_are_well: none has ended, none was started again, and all go on writing.
writers_are_well() {
  local left
  left=$(kube -n "$writers" get pods -o json | jq -r '.items[] | select(.metadata.name != "newcomer")
    | select(.status.phase != "Running" or any(.status.containerStatuses[]; .restartCount > 0 or .ready == false)) | .metadata.name')
  [ -z "$left" ] || die "writers were disturbed:
$(for each in $left; do echo "$each: $(kube -n "$writers" logs "$each" --tail 5)"; done)"
  await "all writers write on" further "$(lines)"
}

writers_end() {
  proved "in all this no writer was kept from writing for more than $(lines | sort -nk 3 | awk 'END { print $3 }') s"
  kube delete namespace "$writers" --timeout "${TIMEOUT}s" >/dev/null || die "the writers do not go"
  volumes_are_gone
  proved "volumes that were in use all the time have been taken down and deleted by the driver of today"
}

# newcomer_comes: the driver does for a new pod what it should.
newcomer_comes() {
  local before
  before=$(driver_volumes | wc -l)
  writer newcomer ext4 | kube apply -f - >"$OUT/apply.log"
  await "a new pod writes to a new volume" settled "$writers"
  writer newcomer ext4 | kube delete --timeout "${TIMEOUT}s" -f - >"$OUT/delete.log" || die "the new pod and its claim do not go"
  await "the new pod's volume is deleted" fewer_volumes "$before"
}

# pod_of KIND/NAME: its first pod.
pod_of() { pods_of "$1" | jq -er '.[0].metadata.name'; }
pods_of() {
  kube -n "$namespace" get pods -o json |
    jq -e --arg owner "${1##*/}" '[.items[] | select(any(.metadata.ownerReferences[]?; .name == $owner))]'
}

# incarnation KIND/NAME: which pod it has, and how often the driver was started in it.
incarnation() {
  pods_of "$1" | jq -er '.[0] | "\(.metadata.uid) \(.status.containerStatuses[]? | select(.name == "touchstone") | .restartCount)"'
}
another() { # another KIND/NAME INCARNATION: it has another one by now, which is ready
  [ "$(incarnation "$1")" != "$2" ] &&
    pods_of "$1" | jq -e 'length == 1 and any(.[0].status.conditions[]?; .type == "Ready" and .status == "True")' >/dev/null
}

# The ways to kill a driver: KIND/NAME.
kill_process() { kill_driver "$(pod_of "$1")"; }
delete_pod() { kube -n "$namespace" delete pod "$(pod_of "$1")" --force --grace-period 0 >"$OUT/delete.log" 2>&1; }
killing() { [ "$1" = kill_process ] && echo "the process was killed" || echo "the pod was deleted by force"; }

node_plugin_killed() {
  local mounts was how plugin=daemonset/$namespace-node
  mounts=$(driver_mounts)
  [ -n "$mounts" ] || die "writers write, but nothing of the driver is mounted on the node: is KUBELET_DIR $KUBELET_DIR?"
  [ -n "$(devices)" ] || die "writers write, but no device has a file of the pool"

  for how in kill_process delete_pod; do
    was=$(incarnation "$plugin")
    "$how" "$plugin"
    await "the node plugin is back" another "$plugin" "$was"
    await "$driver is registered" registered
    same "the driver's mounts" "$mounts" "$(driver_mounts)"
    writers_are_well
    newcomer_comes
    same "the driver's mounts" "$mounts" "$(driver_mounts)"
    proved "node plugin, $(killing "$how"): it is back, all $(wc -l <<<"$mounts") mounts are the same ones, no writer was disturbed, a new pod gets a new volume"
  done
}

burst=$prefix-burst
some=30
claims() {
  local n
  for ((n = 1; n <= some; n++)); do
    cat <<Y
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claim-$n, namespace: $burst}
spec:
  storageClassName: $burst-$([ $((n % 4)) = 0 ] && echo directory || echo ext4)
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: ${n}Mi}}
---
Y
  done
}

# immediate_classes: those of the installation, for claims that no pod uses.
immediate_classes() {
  local each
  for each in ext4 directory; do
    kube get storageclass "touchstone-$each" -o json |
      jq --arg name "$burst-$each" '.metadata = {name: $name} | .volumeBindingMode = "Immediate"' |
      kube apply -f - >/dev/null
  done
}

bound() { kube -n "$burst" get pvc -o json | jq '[.items[] | select(.status.phase == "Bound")] | length'; }
all_bound() {
  local n
  n=$(bound)
  [ "$n" = "$some" ] || { echo "$n of $some are" && return 1; }
}
fewer_volumes() { # fewer_volumes COUNT: or as many
  local listed n
  listed=$(driver_volumes) || return 1
  n=$(grep -c . <<<"$listed") || true
  [ "$n" -le "$1" ] || { echo "there are $n" && return 1; }
}

# each_once: API, driver and pool have the same volumes, each once.
each_once() {
  local api listed files
  api=$(api_volumes)
  listed=$(driver_volumes)
  files=$({ pool_files images && pool_files directories; } | sed 's/\.img$//' | sort)
  same "what the driver lists, against the PersistentVolumes," "$api" "$listed"
  same "what is in the pool, against the PersistentVolumes," "$api" "$files"
  [ -z "$(uniq -d <<<"$api")" ] || die "volumes with two PersistentVolumes: $(uniq -d <<<"$api" | xargs)"
}

# controller_killed_by HOW: while it makes volumes, and while it deletes them.
controller_killed_by() {
  local before was controller
  controller=$(controller)
  before=$(driver_volumes | wc -l)
  kube create namespace "$burst" >/dev/null
  immediate_classes

  was=$(incarnation "$controller")
  claims | kube apply -f - >"$OUT/apply.log" &
  "$1" "$controller"
  say "$(bound) claims were bound when $(killing "$1")"
  wait $! || die "the claims were not taken"
  await "all claims are bound" all_bound
  await "the controller is back" another "$controller" "$was"
  each_once
  fewer_volumes $((before + some)) >&2 || die "for $some claims"
  proved "controller, $(killing "$1") while it made volumes: each of $some claims has one, and there is no other in the API, the driver or the pool"

  was=$(incarnation "$controller")
  kube -n "$burst" delete pvc --all --wait=false >"$OUT/delete.log" &
  sleep 0.5 # it takes them one by one
  "$1" "$controller"
  say "$(api_volumes | wc -l) of $((before + some)) volumes were left when $(killing "$1")"
  wait $! || die "the claims do not go"
  await "the controller is back" another "$controller" "$was"
  await "the volumes are deleted" fewer_volumes "$before"
  kube delete storageclass "$burst-ext4" "$burst-directory" >/dev/null
  kube delete namespace "$burst" --timeout "${TIMEOUT}s" >"$OUT/delete.log" 2>&1 || die "$burst does not go"
  each_once
  proved "the same while it deleted them: none is left, and those in use are all there"
}

controller_killed() {
  controller_killed_by kill_process
  controller_killed_by delete_pod
  writers_are_well
  proved "no writer was disturbed"
}

# shellcheck shell=bash
# What the scenarios of test/e2e/faults.sh have in common: calls of kubectl and of
# touchstone ctl, objects, waits, and the check that a scenario leaves nothing.

say() { echo "e2e-faults: $*"; }
fail() { say "$*" >&2; exit 1; }
cannot() { echo "e2e-faults: $*" >&2; exit 2; }
kube() { $KUBECTL -n "$namespace" "$@"; } # KUBECTL may have arguments
ctl() { "$TOUCHSTONE" ctl --endpoint "$ENDPOINT" "$@"; }

# await WHAT COMMAND...: for what neither the call log nor kubectl wait can wait for.
await() {
  local what=$1 until=$((SECONDS + TIMEOUT))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$until" ] || fail "after $TIMEOUT s still not: $what"
    sleep 1
  done
}

# state OBJECT CONDITION: waits until kubectl wait --for=CONDITION succeeds.
state() {
  kube wait "$1" --for="$2" --timeout="${TIMEOUT}s" >/dev/null ||
    fail "$1 does not become $2: $(kube get "$1" -o jsonpath='{.status}' 2>&1)"
}

# called COUNT METHOD [FLAG...]: waits until the scenario has that many calls.
called() {
  ctl --timeout "${TIMEOUT}s" calls wait --count "$1" --method "$2" --since-call "$since" "${@:3}" >/dev/null ||
    fail "fewer than $1 calls of $2 ${*:3}"
}

# calls METHOD [FLAG...]: the number of calls that the scenario has had.
calls() { ctl calls --method "$1" --since-call "$since" "${@:2}" -o json | jq length; }
last_call() { ctl calls -o json | jq 'map(.call) | max // 0'; }

# add_rules NAME: a file of test/e2e/faults, or of examples/faults.
add_rules() {
  local file=$here/faults/$1.yaml
  [ -f "$file" ] || file=$here/../../examples/faults/$1.yaml
  ctl fault add "$file" >/dev/null
}
clear_rules() { ctl fault clear >/dev/null; }

# claim NAME [CLASS [LINES]]: a claim of 320Mi; LINES are added to its spec.
claim() {
  kube apply -f - >/dev/null <<Y
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: $1}
spec:
  storageClassName: ${2:-$namespace}
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 320Mi}}
  ${3:-}
Y
}
bound() { state "pvc/$1" 'jsonpath={.status.phase}=Bound'; }
# volume CLAIM: the name that external-provisioner gives the volume.
volume() { echo "pvc-$(kube get pvc "$1" -o jsonpath='{.metadata.uid}')"; }
expand() { kube patch pvc "$1" --type merge -p "{\"spec\":{\"resources\":{\"requests\":{\"storage\":\"$2\"}}}}" >/dev/null; }

not_resizing() { [ -z "$(kube get pvc data -o jsonpath='{.status.allocatedResourceStatuses.storage}')" ]; }

# pod NAME CLAIM
pod() {
  kube apply -f - >/dev/null <<Y
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers:
    - name: user
      image: $IMAGE
      imagePullPolicy: IfNotPresent
      command: [sh, -c, "echo written > /data/file && sleep 86400"]
      volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: $2}}]
Y
}
running() { state "pod/$1" condition=Ready; }
# remove OBJECT...: and waits until it is gone.
remove() { kube delete "$@" --wait --timeout="${TIMEOUT}s" >/dev/null || fail "$* is not deleted"; }

# snapshot NAME CLAIM
snapshot() {
  kube apply -f - >/dev/null <<Y
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: $1}
spec:
  volumeSnapshotClassName: $namespace
  source: {persistentVolumeClaimName: $2}
Y
}

# has_event OBJECT REASON [TEXT]
has_event() {
  kube get events --field-selector "involvedObject.name=$1,reason=$2" -o json |
    jq -e --arg text "${3:-}" 'any(.items[]; .message | contains($text))' >/dev/null
}
event() { await "$1 has the event $2 with '${3:-}'" has_event "$@"; }

# attachment_error_is CODE: the gRPC code of the error of data's attachment.
attachment_error_is() {
  local code
  code=$($KUBECTL get volumeattachments -o json |
    jq -r --arg volume "$(volume data)" '.items[] | select(.spec.source.persistentVolumeName == $volume) | .status.attachError.errorCode // empty')
  [ "$code" = "$1" ]
}
limit() { $KUBECTL get csinodes -o json | jq -r --arg name "$DRIVER_NAME" '.items[].spec.drivers[]? | select(.name == $name) | .allocatable.count // 0'; }
limit_is() { [ "$(limit)" = "$1" ]; }
is() { [ "$1" = "$2" ] || fail "$3: $1 instead of $2"; }

driver_objects() { { ctl volume list -o name; ctl snapshot list -o name; } | sort; }
# made: the number of volumes and snapshots that the driver has in addition to those from before.
made() { comm -13 <(echo "$before") <(driver_objects) | wc -l; }
no_volumes_left() {
  $KUBECTL get pv -o json | jq -e --arg class "$namespace" 'all(.items[]; .spec.storageClassName | startswith($class) | not)' >/dev/null
}

# settle: deletes what the scenario has made; Kubernetes has to delete all volumes.
settle() {
  clear_rules
  remove pods --all
  # A snapshot stays while a claim waits for its restoration, a claim while a snapshot is taken.
  kube delete pvc --all --wait=false >/dev/null
  remove volumesnapshots --all
  remove pvc --all
  await "all volumes of the scenario are deleted" no_volumes_left
  [ "$(driver_objects)" = "$before" ] || fail "the driver's volumes and snapshots are not those from before: $(driver_objects)"
}

# known_bug REPOSITORY#NUMBER: Kubernetes does not do what it should, and the bug is reported.
known_bug() { echo "$1" >>"$bugs"; }

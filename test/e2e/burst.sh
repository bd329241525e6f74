#!/usr/bin/env bash
# Measures a burst of claims: how many the cluster binds in a second, and what of that time is the
# driver's. The claims are made while the controller is scaled to none, so that all of them wait when
# it comes back.
#
#   test/e2e/burst.sh [CLAIMS]      10000 without
#
# Prints, each after the time that it took: the claims made, bound and deleted; and for CreateVolume and
# DeleteVolume the mean duration of a call and the driver's processor time for one.
#
# Wanted: a cluster with Touchstone installed whose controller is the StatefulSet (all overlays but
# node-local), kubectl and jq. Settings, as environment variables:
#
#   KUBECONFIG   the cluster
#   KUBECTL      how kubectl is called (kubectl)
#   CLASS        (touchstone-ext4) the claims' class, of which a copy binds at once
#   SIZE         (1Mi) of each claim
#   CALLERS      (8) how many kubectl make claims at a time
#   TIMEOUT      (3600) seconds for each step
set -euo pipefail

claims=${1:-10000}
KUBECTL=${KUBECTL:-kubectl}
CLASS=${CLASS:-touchstone-ext4}
SIZE=${SIZE:-1Mi}
CALLERS=${CALLERS:-8}
TIMEOUT=${TIMEOUT:-3600}
namespace=touchstone-e2e-burst
controller=touchstone-controller
export KUBECTL namespace SIZE

say() { echo "e2e-burst: $*"; }
die() { say "$*" >&2; exit 1; }
cannot() { say "$*" >&2; exit 2; }
# shellcheck disable=SC2086 # KUBECTL may have arguments
kube() { $KUBECTL "$@"; }

kube -n touchstone get statefulset "$controller" >/dev/null || cannot "there is no StatefulSet touchstone/$controller: install the driver (docs/install.md)"
kube get storageclass "$CLASS" >/dev/null || cannot "there is no StorageClass $CLASS: set CLASS"

scaled() { # scaled REPLICAS
  kube -n touchstone scale statefulset "$controller" --replicas="$1" >/dev/null
  kube -n touchstone rollout status statefulset "$controller" --timeout="${TIMEOUT}s" >/dev/null
}

finish() {
  local status=$?
  trap - EXIT
  scaled 1 || true
  kube delete namespace "$namespace" --ignore-not-found >/dev/null 2>&1 || true
  kube delete storageclass "$namespace" --ignore-not-found >/dev/null 2>&1 || true
  exit "$status"
}
trap finish EXIT

# metric NAME [METHOD]: the sum of the driver's series of that name, and of that method.
metric() {
  kube get --raw "/api/v1/namespaces/touchstone/pods/$controller-0:9808/proxy/metrics" |
    awk -v name="$1" -v method="${2:-}" '
      index($0, name) == 1 && substr($0, length(name) + 1) ~ /^[{ ]/ && (method == "" || index($0, "method=\"" method "\"")) { sum += $NF }
      END { printf "%.6f\n", sum }'
}
measured() { metric process_cpu_seconds_total; metric touchstone_call_duration_seconds_sum "$1"; metric touchstone_call_duration_seconds_count "$1"; }

# report VERB METHOD SECONDS BEFORE AFTER: two readings of the metrics, one number a line.
report() {
  paste <(echo "$4") <(echo "$5") | awk -v verb="$1" -v method="$2" -v seconds="$3" -v claims="$claims" '
    { delta[NR] = $2 - $1 }
    END {
      printf "e2e-burst: %d claims %s in %d s: %.0f /s\n", claims, verb, seconds, claims / seconds
      printf "e2e-burst: %s: %d calls, mean %.2f ms, %.2f ms of processor time for each volume: %.0f /s of one processor\n",
        method, delta[3], 1000 * delta[2] / delta[3], 1000 * delta[1] / claims, claims / delta[1]
    }'
}

volumes() { kube get pv -o json | jq --arg class "$namespace" '[.items[] | select(.spec.storageClassName == $class)]'; }
until_there_are() { # until_there_are VOLUMES PHASE
  local began=$SECONDS found
  while found=$(volumes | jq --arg phase "$2" '[.[] | select($phase == "" or .status.phase == $phase)] | length') && [ "$found" != "$1" ]; do
    [ $((SECONDS - began)) -lt "$TIMEOUT" ] || die "after $TIMEOUT s there are $found volumes, not $1"
    sleep 5 # a list of all is work for the API server
  done
}

# claims_of FIRST LAST: a list of claims.
claims_of() {
  seq "$1" "$2" | jq -n --arg namespace "$namespace" --arg size "$SIZE" '{apiVersion: "v1", kind: "List", items: [inputs | {
    apiVersion: "v1", kind: "PersistentVolumeClaim", metadata: {name: "claim-\(.)", namespace: $namespace},
    spec: {storageClassName: $namespace, accessModes: ["ReadWriteOnce"], resources: {requests: {storage: $size}}}}]}' |
    $KUBECTL create -f - >/dev/null
}
export -f claims_of

kube create namespace "$namespace" >/dev/null
kube get storageclass "$CLASS" -o json | jq --arg name "$namespace" '.metadata = {name: $name} | .volumeBindingMode = "Immediate"' | kube apply -f - >/dev/null
scaled 0

began=$SECONDS
for ((first = 1; first <= claims; first += 250)); do
  echo "$first $((first + 249 < claims ? first + 249 : claims))"
done | xargs -P "$CALLERS" -L 1 bash -c 'claims_of "$@"' _
say "$claims claims made in $((SECONDS - began)) s: $((claims / (SECONDS - began + 1))) /s"

scaled 1
before=$(measured CreateVolume)
until_there_are "$claims" Bound
# By the times of the objects, which have whole seconds: a list takes as long.
took=$(volumes | jq '[.[].metadata.creationTimestamp | fromdate] | max - min + 1')
report bound CreateVolume "$took" "$before" "$(measured CreateVolume)"

before=$(measured DeleteVolume) began=$SECONDS
kube -n "$namespace" delete pvc --all --wait=false >/dev/null
until_there_are 0 ''
report deleted DeleteVolume $((SECONDS - began)) "$before" "$(measured DeleteVolume)"

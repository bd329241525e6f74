#!/usr/bin/env bash
# Creates many claims at once, waits until all are bound, deletes them, and prints the rates:
# of the API server, which takes the claims; of external-provisioner and of the whole, from the
# first claim to the last volume that is made, and bound; and the time that the driver took for
# each CreateVolume. Exit code 0: all were bound, and nothing is left of them. 1: they were not.
# 2: it could not be run.
#
# Wanted: a cluster for tests with the driver, a StorageClass of it that binds immediately,
# and external-provisioner, whose --kube-api-qps and --worker-threads bound the rate, as
# --kube-api-qps of kube-controller-manager does; curl and jq. Settings, as environment variables:
#
#   KUBECONFIG     the cluster
#   KUBECTL        (kubectl) how kubectl is called
#   STORAGE_CLASS  the class
#   CLAIMS         (10000) how many
#   METRICS        the URL of the driver's metrics, for its share; without it that is left out
#   CURL           (curl) how curl is called, so that it reaches kubectl's proxy
#   TIMEOUT        (3600) seconds for each wait
set -euo pipefail

KUBECTL=${KUBECTL:-kubectl}
CURL=${CURL:-curl}
CLAIMS=${CLAIMS:-10000}
TIMEOUT=${TIMEOUT:-3600}
namespace=touchstone-e2e-burst
port=8991

say() { echo "e2e-burst: $*"; }
cannot() { say "$*" >&2; exit 2; }

[ -n "${KUBECONFIG:-}" ] || cannot "set KUBECONFIG to the cluster's kubeconfig file"
[ -n "${STORAGE_CLASS:-}" ] || cannot "set STORAGE_CLASS to a class of the driver that binds immediately"
for program in curl jq; do command -v "$program" >/dev/null || cannot "there is no $program"; done
[ -z "${METRICS:-}" ] || curl --silent --fail --output /dev/null "$METRICS" || cannot "METRICS=$METRICS does not answer"

work=$(mktemp -d)
$KUBECTL proxy --port="$port" >"$work/proxy.log" 2>&1 &
proxy=$!

clean_up() {
  $KUBECTL delete namespace "$namespace" --ignore-not-found --wait=false >/dev/null || true
  kill "$proxy" 2>/dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT

now() { date +%s.%N; }
rate() { awk -v n="$1" -v from="$2" -v to="$3" 'BEGIN { printf "%.0f /s", n / (to - from) }'; }

# count PATH: how many objects the API server lists; it sends one.
count() {
  $KUBECTL get --raw "$1?limit=1" | jq '(.items | length) + (.metadata.remainingItemCount // 0)'
}

volumes=/api/v1/persistentvolumes
claims=/api/v1/namespaces/$namespace/persistentvolumeclaims

# await NUMBER: until there are so many volumes beside those of before.
await() {
  local end=$((SECONDS + TIMEOUT))
  until [ "$(($(count "$volumes") - before))" -eq "$1" ]; do
    [ "$SECONDS" -lt "$end" ] || { say "$(($(count "$volumes") - before)) volumes after ${TIMEOUT}s, and not $1"; exit 1; }
    sleep 1
  done
}

# created prints the number and the seconds of the driver's CreateVolume.
created() {
  [ -n "${METRICS:-}" ] || { echo 0 0; return; }
  curl --silent --fail "$METRICS" | awk '/^touchstone_call_duration_seconds_(count|sum)\{.*CreateVolume"/ {
    if ($1 ~ /_count/) n += $NF; else s += $NF } END { print n + 0, s + 0 }'
}

$KUBECTL delete namespace "$namespace" --ignore-not-found >/dev/null
$KUBECTL create namespace "$namespace" >/dev/null
before=$(count "$volumes")
read -r number seconds < <(created)

for i in $(seq "$CLAIMS"); do
  cat <<CONFIG
url = "http://127.0.0.1:$port$claims"
request = POST
header = "Content-Type: application/json"
output = /dev/null
data = "{\"apiVersion\":\"v1\",\"kind\":\"PersistentVolumeClaim\",\"metadata\":{\"name\":\"burst-$i\"},\"spec\":{\"storageClassName\":\"$STORAGE_CLASS\",\"accessModes\":[\"ReadWriteOnce\"],\"resources\":{\"requests\":{\"storage\":\"64Mi\"}}}}"
next
CONFIG
done | sed '$d' >"$work/claims"

$CURL --silent --fail --retry 30 --retry-connrefused --retry-delay 1 --output /dev/null "http://127.0.0.1:$port/version" ||
  cannot "kubectl proxy does not answer on port $port: $(cat "$work/proxy.log")"

begin=$(now)
$CURL --no-progress-meter --fail --parallel --parallel-max 16 --config "$work/claims" || { say "the API server refused claims"; exit 1; }
taken=$(now)
[ "$(count "$claims")" -eq "$CLAIMS" ] || { say "the API server has $(count "$claims") of $CLAIMS claims"; exit 1; }
await "$CLAIMS"
made=$(now)

phases() { $KUBECTL get --raw "$claims" | jq -r '.items[].status.phase' | sort | uniq -c | xargs; }
end=$((SECONDS + TIMEOUT))
until [ "$(phases)" = "$CLAIMS Bound" ]; do
  [ "$SECONDS" -lt "$end" ] || { say "claims after ${TIMEOUT}s: $(phases)"; exit 1; }
  sleep 1
done
bound=$(now)

read -r number_now seconds_now < <(created)
say "$CLAIMS claims: the API server took $(rate "$CLAIMS" "$begin" "$taken"), external-provisioner made volumes for" \
  "$(rate "$CLAIMS" "$begin" "$made"), and $(rate "$CLAIMS" "$begin" "$bound") were bound"
[ "$number_now" = "$number" ] || awk -v n="$((number_now - number))" -v s="$seconds_now" -v b="$seconds" \
  'BEGIN { printf "e2e-burst: the driver took %.2f ms for each of %d CreateVolume\n", 1000 * (s - b) / n, n }'

begin=$(now)
$KUBECTL delete namespace "$namespace" --wait=false >/dev/null
await 0
say "deleted $(rate "$CLAIMS" "$begin" "$(now)")"

#!/usr/bin/env bash
# Runs the suites of Kubernetes that deploy csi-driver-host-path themselves (csi-hostpath,
# csi-mock, DRA) with our image hostpathplugin under the name of that one, and compares the
# result spec by spec with that of upstream's own image. Nothing of ours is deployed. Exit
# code 0: what passes with upstream's own image passes with ours. 1: it does not. 2: it could
# not be run.
#
#   test/e2e/upstream.sh
#
# Wanted: a cluster for tests (KUBECONFIG), Go, jq, kubectl, and the suite of the cluster's
# version with ginkgo (run.sh says where to get them). Specs of group snapshots want the types
# of external-snapshotter and a controller with CSIVolumeGroupSnapshot; those of changed blocks
# the type SnapshotMetadataService. What a cluster lacks fails with either image.
#
# Settings, as environment variables:
#
#   KUBECONFIG   the cluster
#   KUBECTL      (kubectl) a program's name or path
#   E2E_TEST     (e2e.test) the suite
#   GINKGO       (ginkgo beside E2E_TEST, or in PATH)
#   IMPORT       brings an image to the nodes; the path of an archive is added to it
#                (kind load image-archive; on the node: ctr --namespace k8s.io images import)
#   IMAGE        an archive of the image to test, under upstream's name (built)
#   BASELINE     an archive of upstream's own image (docker save), whose run comes first, or
#                the report.json of an earlier run; build: upstream's program is built from
#                its module, and put into our image; without it no spec may fail
#   BASELINE_SOURCE  a checkout of csi-driver-host-path to build from, where the module cannot
#                be downloaded
#   KILL         yes: the process of each driver is killed once, as soon as it is 12 s old; on
#                the node, as root
#   PROCS        (4) how many specs at a time
#   FOCUS, SKIP  regular expressions of specs
#   OUT          (out/e2e-upstream) where reports and logs go
#   TIMEOUT      (4h) for each run
#   KUBELET_DIR  (/var/lib/kubelet)
#   E2E_FLAGS    further flags of e2e.test
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
KUBECTL=${KUBECTL:-kubectl}
E2E_TEST=${E2E_TEST:-e2e.test}
OUT=$(realpath -m "${OUT:-out/e2e-upstream}")
FOCUS=${FOCUS:-'CSI Volumes.*csi-hostpath|CSI Mock|\[DRA\] kubelet'}
SKIP=${SKIP-'\[Disruptive\]|\[Flaky\]'}

say() { echo "e2e-upstream: $*"; }
cannot() { say "$*" >&2; exit 2; }

[ -n "${KUBECONFIG:-}" ] || cannot "set KUBECONFIG to the cluster's kubeconfig file"
[ -n "${IMPORT:-}" ] || cannot "set IMPORT to the command that brings an archive of an image to the nodes"
e2e=$(command -v "$E2E_TEST") || cannot "there is no $E2E_TEST: set E2E_TEST"
kubectl=$(command -v "$KUBECTL") || cannot "there is no $KUBECTL: set KUBECTL"
ginkgo=${GINKGO:-$(dirname "$e2e")/ginkgo}
ginkgo=$(command -v "$ginkgo" || command -v ginkgo) || cannot "there is no ginkgo: set GINKGO"
KUBECONFIG=$(realpath "$KUBECONFIG") && kubectl=$(realpath -s "$kubectl")
image=$("$e2e" --list-images | grep '/hostpathplugin:' | sort -V | tail -n 1)

mkdir -p "$OUT"
(cd "$here" && go build -o "$OUT/judge" ./judge) || cannot "building the judge failed"
if [ -z "${IMAGE:-}" ]; then
  IMAGE=$OUT/hostpathplugin.tar
  "$here/../../hack/build-image.sh" --hostpath --archive "$IMAGE" --as "$image" >"$OUT/build.log" 2>&1 ||
    cannot "building the image failed: $OUT/build.log"
fi

# killing: SIGKILL for each hostpathplugin, once for each pod.
killing() {
  local pid pod
  declare -A killed
  while sleep 1; do
    for pid in $(pgrep -x hostpathplugin); do
      pod=$(grep -oEm1 'pod[0-9a-f-]{36}' "/proc/$pid/cgroup") || continue
      if [ -z "${killed[$pod]:-}" ] && [ "$(ps -o etimes= -p "$pid")" -ge 12 ]; then
        kill -9 "$pid" && killed[$pod]=yes && echo "$pod" >>"$1"
      fi
    done
  done
} 2>/dev/null

# suite NAME ARCHIVE: one run, with its report and the logs of all drivers in $OUT/NAME.
suite() {
  local directory=$OUT/$1 features=() killer=''
  # shellcheck disable=SC2086 # several words
  $IMPORT "$2" >"$OUT/import.log" 2>&1 || cannot "'$IMPORT $2' failed: $OUT/import.log"
  rm -rf "$directory" && mkdir -p "$directory"
  "$kubectl" get crd volumegroupsnapshots.groupsnapshot.storage.k8s.io >/dev/null 2>&1 && features+=(CSI_PROW_ENABLE_GROUP_SNAPSHOT=true)
  "$kubectl" get crd snapshotmetadataservices.cbt.storage.k8s.io >/dev/null 2>&1 && features+=(CSI_PROW_ENABLE_SNAPSHOT_METADATA=true)
  say "$1: log, report and the drivers' logs in $directory"
  if [ "${KILL:-no}" = yes ]; then
    killing "$directory/killed" &
    killer=$!
  fi
  # shellcheck disable=SC2086 # several flags
  env "${features[@]}" "$ginkgo" --procs="${PROCS:-4}" --timeout="${TIMEOUT:-4h}" --no-color --silence-skips \
    --focus="$FOCUS" --skip="$SKIP" --json-report=report.json --output-dir="$directory" \
    "$e2e" -- --kubeconfig="$KUBECONFIG" --kubectl-path="$kubectl" --provider=skeleton --disable-log-dump \
    --kubelet-root-dir="${KUBELET_DIR:-/var/lib/kubelet}" --report-dir="$directory/drivers" ${E2E_FLAGS:-} \
    >"$directory/log" 2>&1 || true # the judge evaluates it
  [ -z "$killer" ] || kill "$killer"
  [ ! -s "$directory/killed" ] || say "$1: $(wc -l <"$directory/killed") drivers were killed once"
  [ -s "$directory/report.json" ] || { tail -20 "$directory/log" >&2 && cannot "$1: the suite has left no report"; }
}

# build_baseline ARCHIVE: upstream's program, of the version that the suite names, with what our image has.
build_baseline() {
  local source=${BASELINE_SOURCE:-}
  [ -n "$source" ] || source=$(go mod download -json "github.com/kubernetes-csi/csi-driver-host-path@${image##*:}" | jq -er .Dir) || return 1
  (cd "$source" && CGO_ENABLED=0 go build -mod=readonly -ldflags "-X main.version=${image##*:}" -o "$OUT/upstream-hostpathplugin" ./cmd/hostpathplugin) &&
    "$here/../../hack/build-image.sh" --hostpath --program "$OUT/upstream-hostpathplugin" --archive "$1" --as "$image"
} >"$OUT/build-baseline.log" 2>&1

compared=()
if [ "${BASELINE:-}" = build ]; then
  BASELINE=$OUT/baseline.tar
  build_baseline "$BASELINE" || cannot "building upstream's own ${image##*:} failed: $OUT/build-baseline.log; BASELINE_SOURCE may name a checkout, BASELINE an archive"
fi
case ${BASELINE:-} in
  '') ;;
  *.json) compared=(-baseline "$BASELINE") ;;
  *)
    suite baseline "$BASELINE"
    compared=(-baseline "$OUT/baseline/report.json")
    ;;
esac
suite hostpathplugin "$IMAGE"
"$OUT/judge" compare -report "$OUT/hostpathplugin/report.json" -logs "$OUT/hostpathplugin/drivers" "${compared[@]}" | tee "$OUT/summary"

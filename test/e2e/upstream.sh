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
#                the report.json of an earlier run; without it no spec may fail
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

# suite NAME ARCHIVE: one run, with its report and the logs of all drivers in $OUT/NAME.
suite() {
  local directory=$OUT/$1 features=()
  # shellcheck disable=SC2086 # several words
  $IMPORT "$2" >"$OUT/import.log" 2>&1 || cannot "'$IMPORT $2' failed: $OUT/import.log"
  rm -rf "$directory" && mkdir -p "$directory"
  "$kubectl" get crd volumegroupsnapshots.groupsnapshot.storage.k8s.io >/dev/null 2>&1 && features+=(CSI_PROW_ENABLE_GROUP_SNAPSHOT=true)
  "$kubectl" get crd snapshotmetadataservices.cbt.storage.k8s.io >/dev/null 2>&1 && features+=(CSI_PROW_ENABLE_SNAPSHOT_METADATA=true)
  say "$1: log, report and the drivers' logs in $directory"
  # shellcheck disable=SC2086 # several flags
  env "${features[@]}" "$ginkgo" --procs="${PROCS:-4}" --timeout="${TIMEOUT:-4h}" --no-color --silence-skips \
    --focus="$FOCUS" --skip="$SKIP" --json-report=report.json --output-dir="$directory" \
    "$e2e" -- --kubeconfig="$KUBECONFIG" --kubectl-path="$kubectl" --provider=skeleton --disable-log-dump \
    --kubelet-root-dir="${KUBELET_DIR:-/var/lib/kubelet}" --report-dir="$directory/drivers" ${E2E_FLAGS:-} \
    >"$directory/log" 2>&1 || true # the judge evaluates it
  [ -s "$directory/report.json" ] || { tail -20 "$directory/log" >&2 && cannot "$1: the suite has left no report"; }
}

compared=()
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

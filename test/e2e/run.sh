#!/usr/bin/env bash
# Runs Kubernetes' own suite for external storage drivers against Touchstone, and
# judges what it skipped. Exit code 0: all that we claim has passed. 1: it has not.
# 2: it could not be run.
#
#   test/e2e/run.sh [TEST-DRIVER.yaml ...]     without: all that fit what is installed
#
# Wanted: a cluster with Touchstone installed as csi.touchstone.dev, snapshot
# controller and CRDs among it (docs/install.md) by the overlay testing, or
# node-local for node-local.yaml, which the others do not fit; Go, kubectl, and
# the suite of the cluster's version. It is in each release of Kubernetes:
#
#   v=$(kubectl version -o json | jq -r .serverVersion.gitVersion)
#   curl -L https://dl.k8s.io/${v%%[+-]*}/kubernetes-test-linux-amd64.tar.gz |
#     tar xz --strip-components=3 kubernetes/test/bin/{e2e.test,ginkgo}
#
# or, in a checkout of Kubernetes: make WHAT="test/e2e/e2e.test ginkgo".
# A cluster: `kind create cluster`, or any other. Its nodes pull the images that
# `e2e.test --list-images` names.
#
# Settings, as environment variables:
#
#   KUBECONFIG   the cluster
#   KUBECTL      (kubectl) a program's name or path
#   E2E_TEST     (e2e.test) the suite
#   GINKGO       runs it in parallel (ginkgo beside E2E_TEST, or in PATH); where
#                there is none, one spec runs after the other
#   PROCS        (4) how many specs at a time
#   LACKING      what the cluster can't do, separated by commas: words of rules.yaml
#                (online-ext4-grow, registry, volume-limit)
#   FOCUS, SKIP  regular expressions of specs, for a run of some
#   OUT          (out/e2e) where reports and logs go
#   TIMEOUT      (2h) for each test-driver file
#   KUBELET_DIR  (/var/lib/kubelet)
#   E2E_FLAGS    further flags of e2e.test
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
KUBECTL=${KUBECTL:-kubectl}
E2E_TEST=${E2E_TEST:-e2e.test}
PROCS=${PROCS:-4}
OUT=${OUT:-out/e2e}
driver=csi.touchstone.dev

cannot() { echo "e2e: $*" >&2; exit 2; }

[ -n "${KUBECONFIG:-}" ] || cannot "set KUBECONFIG to the cluster's kubeconfig file"
e2e=$(command -v "$E2E_TEST") || cannot "there is no $E2E_TEST: set E2E_TEST; this script's first lines say where to get it"
kubectl=$(command -v "$KUBECTL") || cannot "there is no $KUBECTL: set KUBECTL"
# ginkgo starts the suite in another directory.
KUBECONFIG=$(realpath "$KUBECONFIG") && kubectl=$(realpath -s "$kubectl")
ginkgo=${GINKGO:-$(dirname "$e2e")/ginkgo}
ginkgo=$(command -v "$ginkgo" || command -v ginkgo) || ginkgo=''
"$kubectl" get csidriver "$driver" >/dev/null || cannot "the cluster has no CSIDriver $driver: install the driver first"
drivers=$("$kubectl" get csinodes -o "jsonpath={.items[*].spec.drivers[?(@.name=='$driver')].nodeID}")
nodes=$(wc -w <<<"$drivers")
[ "$nodes" -gt 0 ] || cannot "no node has $driver: see the node plugin's log"

mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
judge=$OUT/judge
(cd "$here" && go build -o "$judge" ./judge) || cannot "building the judge failed"

# suite NAME DIRECTORY EXPRESSION: one run of the suite, its report in DIRECTORY.
suite() {
  local name=$1 directory=$2 skip=$3 flags how
  flags=(
    --storage.testdriver="$directory/$name.yaml" --kubeconfig="$KUBECONFIG" --kubectl-path="$kubectl"
    --provider=skeleton --kubelet-root-dir="${KUBELET_DIR:-/var/lib/kubelet}" --disable-log-dump
  )
  # shellcheck disable=SC2206 # several flags
  flags+=(${E2E_FLAGS:-})
  how=(--timeout="${TIMEOUT:-2h}" --no-color --silence-skips --focus="External.Storage.*(${FOCUS:-})" --skip="$skip")
  if [ -n "$ginkgo" ] && [ "$PROCS" -gt 1 ]; then
    "$ginkgo" --procs="$PROCS" "${how[@]}" --json-report=report.json --output-dir="$directory" "$e2e" -- "${flags[@]}"
  else
    "$e2e" "${how[@]/#--/--ginkgo.}" --ginkgo.json-report="$directory/report.json" "${flags[@]}"
  fi
}

files=("$@")
if [ ${#files[@]} = 0 ]; then
  files=("$here"/image-{ext4,xfs,btrfs}.yaml "$here"/directory.yaml)
  # Node-local drivers attach nothing.
  if [ "$("$kubectl" get csidriver "$driver" -o 'jsonpath={.spec.attachRequired}')" = false ]; then
    files=("$here"/node-local.yaml)
  fi
fi
code=0
: >"$OUT/summary"
for file in "${files[@]}"; do
  [ -f "$file" ] || cannot "there is no test-driver file $file"
  name=$(basename "$file" .yaml)
  directory=$OUT/$name
  rm -rf "$directory" && mkdir -p "$directory"
  # The suite looks for these files from wherever it is started.
  sed "s#FromFile: #FromFile: $here/#" "$file" >"$directory/$name.yaml"

  rules=(-rules "$here/rules.yaml" -driver "$directory/$name.yaml" -lacking "${LACKING:-}")
  skip=$("$judge" skip "${rules[@]}") || cannot "rules.yaml can't be used"
  echo "e2e: $name: log and report in $directory"
  [ -z "${FOCUS:-}${SKIP:-}" ] || echo "e2e: $name: NOT a full run: FOCUS='${FOCUS:-}' SKIP='${SKIP:-}'" | tee "$directory/partial"
  suite "$name" "$directory" "$skip${SKIP:+|$SKIP}" >"$directory/log" 2>&1 || true # the judge evaluates it
  if [ ! -s "$directory/report.json" ]; then
    tail -20 "$directory/log" >&2
    cannot "$name: the suite has left no report"
  fi

  if [ -s "$directory/partial" ]; then
    jq -r '[.[].SpecReports[] | select(.State == "skipped" or .State == "")] | "e2e: \(length) specs of the suite were filtered out"' \
      "$directory/report.json" >>"$directory/partial" || true
    tee -a "$OUT/summary" <"$directory/partial"
  fi
  status=0
  "$judge" report "${rules[@]}" -nodes "$nodes" -report "$directory/report.json" >"$directory/verdict" || status=$?
  cat "$directory/verdict"
  cat "$directory/verdict" >>"$OUT/summary"
  [ "$status" -lt 2 ] || exit 2
  [ "$status" = 0 ] || code=1
done
exit "$code"

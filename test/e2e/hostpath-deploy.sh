#!/usr/bin/env bash
# Installs our image hostpathplugin with the deploy scripts of csi-driver-host-path, by their
# variables for images alone, and uses it as the examples there do: a claim and its pod, a
# snapshot, what is restored from it, the driver killed under them. Exit code 0: all that it
# prints as proved is so. 1: it is not. 2: it could not be run.
#
#   SOURCE=DIRECTORY test/e2e/hostpath-deploy.sh [DEPLOYMENT...]
#
# DEPLOYMENT is a directory in deploy/ there, such as kubernetes-latest; without one, all are
# tried. Wanted: a cluster for tests (KUBECONFIG) with the snapshot controller, and kubectl.
# Settings, as environment variables:
#
#   SOURCE       a checkout of csi-driver-host-path
#   KUBECONFIG   the cluster
#   KUBECTL      (kubectl) a program's name or path
#   IMPORT       brings an archive of an image to the nodes, as in upstream.sh
#   IMAGE        an archive of the image to test (built)
#   BUSYBOX      (busybox) the image of the applications
#   OUT          (out/e2e-hostpath-deploy) where the logs go
#   TIMEOUT      (300) seconds for whatever is waited for
#
# Variables of those scripts, such as CSI_PROVISIONER_TAG or CSI_PROVISIONER_RBAC, reach them.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
OUT=$(realpath -m "${OUT:-out/e2e-hostpath-deploy}")
TIMEOUT=${TIMEOUT:-300}

say() { echo "e2e-hostpath-deploy: $*"; }
proved() { say "proved: $*"; }
cannot() { say "$*" >&2; exit 2; }
die() { say "$*" >&2; exit 1; }

[ -n "${IMPORT:-}" ] || cannot "set IMPORT to the command that brings an archive of an image to the nodes"
[ -d "${SOURCE:-}/deploy" ] || cannot "set SOURCE to a checkout of csi-driver-host-path"
SOURCE=$(realpath "$SOURCE")
mkdir -p "$OUT/path"
# The scripts call kubectl.
ln -sfn "$(command -v "${KUBECTL:-kubectl}")" "$OUT/path/kubectl"
export PATH=$OUT/path:$PATH

if [ -z "${IMAGE:-}" ]; then
  IMAGE=$OUT/hostpathplugin.tar
  "$here/../../hack/build-image.sh" --hostpath --archive "$IMAGE" >"$OUT/build.log" 2>&1 || cannot "building the image failed: $OUT/build.log"
fi
# shellcheck disable=SC2086 # several words
$IMPORT "$IMAGE" >"$OUT/import.log" 2>&1 || cannot "'$IMPORT $IMAGE' failed: $OUT/import.log"
name=$(tar -xOf "$IMAGE" manifest.json | jq -er '.[0].RepoTags[0]')
[[ $name == */hostpathplugin:* ]] || name=docker.io/library/$name
export HOSTPATHPLUGIN_REGISTRY=${name%/*} HOSTPATHPLUGIN_TAG=${name##*:}

ready() { kubectl wait --for=condition=Ready --timeout "${TIMEOUT}s" "$1" >/dev/null; }
plugin() { kubectl get pods -l app.kubernetes.io/name=csi-hostpathplugin -o name | grep -m 1 .; }
gone() { [ -z "$(kubectl get pv -o jsonpath='{.items[?(@.spec.csi.driver=="hostpath.csi.k8s.io")].metadata.name}')" ]; }
await() { # await WHAT COMMAND
  local until=$((SECONDS + TIMEOUT))
  until "$2" >/dev/null; do
    [ "$SECONDS" -lt "$until" ] || die "after $TIMEOUT s still not: $1"
    sleep 1
  done
}
pod() { # pod NAME CLAIM: the examples' application
  sed "s/my-csi-app/$1/; s/claimName: csi-pvc.*/claimName: $2/; s#image: busybox#image: ${BUSYBOX:-busybox}#" "$SOURCE/examples/csi-app.yaml" | kubectl apply -f - >/dev/null
  ready "pod/$1"
}

# used DEPLOYMENT: the driver's claims, snapshots and their restoration, and a kill under them.
used() {
  local class=csi-hostpath-sc restored=hpvc-restore driver
  if [ "$1" = kubernetes-distributed ]; then # it has classes of its own, and no snapshots
    class=csi-hostpath-fast restored=''
  else
    kubectl apply -f "$SOURCE/examples/csi-storageclass.yaml" >/dev/null
  fi
  sed "s/csi-hostpath-sc/$class/" "$SOURCE/examples/csi-pvc.yaml" | kubectl apply -f - >/dev/null
  pod my-csi-app csi-pvc
  kubectl exec my-csi-app -- sh -c 'echo first >/data/line && sync'
  if [ -n "$restored" ]; then
    kubectl apply -f "$SOURCE/examples/csi-snapshot-v1.yaml" >/dev/null
    kubectl wait --for=jsonpath='{.status.readyToUse}'=true --timeout "${TIMEOUT}s" volumesnapshot/new-snapshot-demo >/dev/null
  fi
  driver=$(plugin)
  kubectl delete "$driver" --force --grace-period=0 >/dev/null 2>&1
  kubectl exec my-csi-app -- sh -c 'echo second >>/data/line && sync'
  await "$1: the driver's pod is made again" plugin
  ready "$(plugin)"
  if [ -n "$restored" ]; then
    kubectl apply -f "$SOURCE/examples/csi-restore.yaml" >/dev/null
    pod restored "$restored"
    [ "$(kubectl exec restored -- cat /data/line)" = first ] || die "$1: what was restored is not what was in the snapshot"
    kubectl delete pod/restored "pvc/$restored" volumesnapshot/new-snapshot-demo --timeout "${TIMEOUT}s" >/dev/null
  fi
  [ "$(kubectl exec my-csi-app -- cat /data/line | xargs)" = "first second" ] || die "$1: the volume has lost what was written"
  kubectl delete pod/my-csi-app pvc/csi-pvc --timeout "${TIMEOUT}s" >/dev/null
  await "$1: no PersistentVolume is left" gone
  kubectl logs "$(plugin)" -c hostpath >"$OUT/$1.driver.log"
}

deployment() {
  say "== $1"
  "$SOURCE/deploy/$1/deploy.sh" >"$OUT/$1.log" 2>&1 || die "$1/deploy.sh failed: $(tail -n 20 "$OUT/$1.log")"
  [[ $(kubectl get "$(plugin)" -o jsonpath='{.spec.containers[*].image}') == *"$name"* ]] || die "$1: the driver's pod has another image than $name"
  used "$1"
  "$SOURCE/deploy/$1/destroy.sh" >>"$OUT/$1.log" 2>&1 || die "$1/destroy.sh failed: $(tail -n 20 "$OUT/$1.log")"
  proved "$1 is installed by its variables for images; a volume, its snapshot and a copy outlive the driver's pod; and it is removed"
}

for each in "${@:-}"; do
  [ -z "$each" ] || { deployment "$each" && continue; }
  for directory in "$SOURCE"/deploy/*/deploy.sh; do deployment "$(basename "$(dirname "$directory")")"; done
done

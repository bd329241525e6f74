#!/usr/bin/env bash
# Installs our image hostpathplugin with the deploy scripts of csi-driver-host-path, by their
# variables for images alone, and uses it as the examples there do: a claim and its pod, a
# snapshot and what is restored from it, while the driver's pod is deleted by force. Exit code
# 0: all that it prints as proved is so. 1: it is not, and all is left as it was then; the
# deployment's destroy.sh removes it. 2: it could not be run.
#
#   SOURCE=DIRECTORY test/e2e/hostpath-deploy.sh [DEPLOYMENT...]
#
# DEPLOYMENT is a directory in deploy/ there, such as kubernetes-latest; without one, all are
# tried. Wanted: a cluster for tests with the snapshot controller, kubectl and jq. Not beside a
# run of upstream.sh: destroy.sh deletes by labels that the drivers of those suites have, too.
# Settings, as environment variables:
#
#   SOURCE       a checkout of csi-driver-host-path
#   KUBECONFIG   the cluster
#   KUBECTL      (kubectl) how kubectl is called
#   IMPORT       brings an archive of an image to the nodes, as in install.sh
#   IMAGE        an archive of the image to test (built)
#   BUSYBOX      (busybox:1.37) the image of the applications
#   OUT          (out/e2e-hostpath-deploy) where the logs go
#   TIMEOUT      (300) seconds for whatever is waited for
#
# Variables of those scripts reach them: such as CSI_PROVISIONER_TAG, CSI_PROVISIONER_RBAC (a file, where
# nodes or this machine reach no other network), and KUBELET_DATA_DIR, if it is not /var/lib/kubelet.
set -euo pipefail

tree=$(cd "$(dirname "$0")/../.." && pwd)
program=e2e-hostpath-deploy
OUT=${OUT:-$tree/out/$program}
# shellcheck source=test/e2e/install/settings.sh
. "$tree/test/e2e/install/settings.sh"

[ -d "${SOURCE:-}/deploy" ] || cannot "set SOURCE to a checkout of csi-driver-host-path"
SOURCE=$(realpath "$SOURCE")
mkdir -p "$OUT"
programs # the scripts call kubectl

if [ -z "${IMAGE:-}" ]; then
  IMAGE=$OUT/hostpathplugin.tar
  "$tree/hack/build-image.sh" --hostpath --archive "$IMAGE" >"$OUT/build.log" 2>&1 || cannot "building the image failed: $OUT/build.log"
fi
import "$IMAGE"
name=$(name_in "$IMAGE")
[[ $name == */hostpathplugin:* ]] || name=docker.io/library/$name
export HOSTPATHPLUGIN_REGISTRY=${name%/*} HOSTPATHPLUGIN_TAG=${name##*:}

ready() { kube wait --for=condition=Ready --timeout "${TIMEOUT}s" "$1" >/dev/null; }
plugin() { kube get pods -l app.kubernetes.io/name=csi-hostpathplugin -o name | grep -m 1 .; }
volumes() { kube get pv -o jsonpath='{.items[?(@.spec.csi.driver=="hostpath.csi.k8s.io")].metadata.name}'; }

# pod NAME CLAIM: the examples' application.
pod() {
  sed "s/my-csi-app/$1/; s/claimName: csi-pvc.*/claimName: $2/; s#image: busybox#image: $BUSYBOX#" "$SOURCE/examples/csi-app.yaml" | kube apply -f - >/dev/null
  ready "pod/$1"
}

# used DEPLOYMENT: a claim, its snapshot and what is restored from that, while the driver's pod is replaced.
used() {
  local class=csi-hostpath-sc restored=hpvc-restore
  if [ "$1" = kubernetes-distributed ]; then # it has classes of its own, and no snapshots
    class=csi-hostpath-fast restored=''
  else
    kube apply -f "$SOURCE/examples/csi-storageclass.yaml" >/dev/null
  fi
  sed "s/csi-hostpath-sc/$class/" "$SOURCE/examples/csi-pvc.yaml" | kube apply -f - >/dev/null
  pod my-csi-app csi-pvc
  kube exec my-csi-app -- sh -c 'echo first >/data/line && sync'
  if [ -n "$restored" ]; then
    kube apply -f "$SOURCE/examples/csi-snapshot-v1.yaml" >/dev/null
    kube wait --for=jsonpath='{.status.readyToUse}'=true --timeout "${TIMEOUT}s" volumesnapshot/new-snapshot-demo >/dev/null
  fi
  kube delete "$(plugin)" --force --grace-period=0 >/dev/null 2>&1
  kube exec my-csi-app -- sh -c 'echo second >>/data/line && sync'
  await "$1: the driver's pod is made again" plugin
  ready "$(plugin)"
  if [ -n "$restored" ]; then
    kube apply -f "$SOURCE/examples/csi-restore.yaml" >/dev/null
    pod restored "$restored"
    [ "$(kube exec restored -- cat /data/line)" = first ] || die "$1: what was restored is not what was in the snapshot"
    kube delete pod/restored "pvc/$restored" volumesnapshot/new-snapshot-demo --timeout "${TIMEOUT}s" >/dev/null
  fi
  [ "$(kube exec my-csi-app -- cat /data/line | xargs)" = "first second" ] || die "$1: the volume has lost what was written"
  kube delete pod/my-csi-app pvc/csi-pvc --timeout "${TIMEOUT}s" >/dev/null
  await "$1: no PersistentVolume is left" none volumes
  kube logs "$(plugin)" -c hostpath >"$OUT/$1.driver.log"
}

# theirs DEPLOYMENT SCRIPT
theirs() { PATH=$OUT/path:$PATH "$SOURCE/deploy/$1/$2" >>"$OUT/$1.log" 2>&1 || die "$1/$2 failed: $(tail -n 20 "$OUT/$1.log")"; }

deployment() {
  say "== $1"
  rm -f "$OUT/$1.log"
  theirs "$1" deploy.sh
  [[ $(kube get "$(plugin)" -o jsonpath='{.spec.containers[*].image}') == *"$name"* ]] || die "$1: the driver's pod has another image than $name"
  used "$1"
  theirs "$1" destroy.sh
  proved "$1 is installed by its variables for images; a volume, its snapshot and a copy outlive the driver's pod; and it is removed"
}

(($#)) || for each in "$SOURCE"/deploy/*/deploy.sh; do set -- "$@" "$(basename "$(dirname "$each")")"; done
for each; do deployment "$each"; done

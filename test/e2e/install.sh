#!/usr/bin/env bash
# Installs Touchstone on a cluster as its users do, has an application use each
# feature, kills and upgrades the driver under way, uninstalls it, and looks for
# what is left. Exit code 0: all that it prints as proved is so. 1: it is not; the
# pods' states, events and logs are in $OUT/failure. 2: it could not be run.
#
#   test/e2e/install.sh
#
# Wanted: a cluster without Touchstone that may be played with, of one node (or with
# OVERLAY, another), kubectl, jq, git, Go, and docker, podman or buildah, for root,
# to build images with. With kind, which it was not run on yet, all of it is:
#
#   kind create cluster && make e2e-install
#
# Settings, as environment variables:
#
#   KUBECONFIG    the cluster
#   KUBECTL       (kubectl) how kubectl is called
#   IMPORT        brings images to the nodes; the path of an archive is added to it
#                 (kind and minikube: their own command; else, on the node itself:
#                 ctr --namespace k8s.io images import)
#   KUBELET_DIR   (/var/lib/kubelet)
#   POOL          (/var/lib/touchstone) where pool and state are on the node
#   OVERLAY       (single-node) one of deploy/kustomize/overlays, or a path
#   METHOD        (manifests) helm: install the chart; HELM is how helm is called
#   PREREQUISITES (yes) no: the cluster has the CRDs and a snapshot controller
#   IMAGE         an archive of the image to test (built from this tree)
#   IMAGE_BEFORE  an archive of the image to upgrade from (built from UPGRADE_FROM)
#   UPGRADE_FROM  a git revision (the newest tag before this commit, else the one
#                 before the last change of the driver)
#   SIDECARS      (out/sidecars) archives of the sidecars; what is missing is built.
#                 What is there is used in the version it has. registry: the nodes
#                 pull them
#   SIDECAR_SOURCE  checkouts to build sidecars from, where their modules cannot be
#                 downloaded: NAME=DIRECTORY, several with spaces between
#   BUSYBOX       (busybox:1.37) the image of the applications
#   EXAMPLES      (all) names of directories in examples/
#   STEPS         (images install examples disruption upgrade uninstall pages) some of
#                 them, on what an earlier run with KEEP=yes has left. pages wants helm, and
#                 to be run on the node, as root: a page copies the state there
#   KEEP          yes: leave all as it is at the end, also after a failure
#   OUT           (out/e2e-install) archives, what was applied, and after a failure logs
#   TIMEOUT       (300) seconds for whatever is waited for
#   LOST          (30) seconds that an application may be kept from writing
set -euo pipefail

tree=$(cd "$(dirname "$0")/../.." && pwd)
STEPS=${STEPS:-images install examples disruption upgrade uninstall pages}
# shellcheck source=test/e2e/install/settings.sh
. "$tree/test/e2e/install/settings.sh"

check_wanted() {
  local program
  for program in jq git "${KUBECTL%% *}"; do
    command -v "$program" >/dev/null || cannot "there is no $program"
  done
  kube version >/dev/null || cannot "the cluster does not answer: set KUBECONFIG (and KUBECTL)"
  ! wants install || [ -z "$(kube get csidriver "$driver" --ignore-not-found -o name)" ] ||
    cannot "the cluster has $driver: uninstall it first (docs/uninstall.md); this is no place to try things out"
  # What is applied is deleted in the end, and all drivers' snapshots with their types.
  ! wants install || [ "$PREREQUISITES" = no ] || [ -z "$(kube get crd "$snapshots" --ignore-not-found -o name)" ] ||
    cannot "the cluster has the types of snapshots: PREREQUISITES=no leaves them, and their controller, as they are"
}

main() {
  mkdir -p "$OUT"
  check_wanted
  trap finish EXIT
  ! wants images || step images_are_there
  if wants install; then
    step installed before
    step doctor_finds_nothing
  fi
  [ "$STEPS" = pages ] || watch_node # the pages have images of their own
  if wants examples; then
    applications
    step nothing_forbidden
  fi
  if wants disruption; then
    step writers_write
    step node_plugin_killed
    # In node-local that was the controller, and claims wait for pods there.
    [[ $(controller) == daemonset* ]] || step controller_killed
    ! wants upgrade || step nothing_forbidden # the pods go, and their logs
  fi
  if wants upgrade; then
    step writers_write
    step upgraded
    step doctor_finds_nothing
  fi
  if wants disruption || wants upgrade; then
    step writers_end
    step nothing_forbidden
  fi
  ! wants uninstall || step uninstalled
  ! wants pages || step pages_run
  say "all held, after $SECONDS s"
}

main; exit

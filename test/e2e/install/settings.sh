# shellcheck shell=bash
# The settings of test/e2e/install.sh and hack/try-*.sh, which set `tree` and may set
# others before, and the functions of this directory.

KUBECTL=${KUBECTL:-kubectl}
KUBELET_DIR=${KUBELET_DIR:-/var/lib/kubelet}
OVERLAY=${OVERLAY:-single-node}
METHOD=${METHOD:-manifests}
PREREQUISITES=${PREREQUISITES:-yes}
SIDECARS=${SIDECARS:-$tree/out/sidecars}
BUSYBOX=${BUSYBOX:-busybox:1.37}
EXAMPLES=${EXAMPLES:-all}
KEEP=${KEEP:-no}
OUT=$(realpath -m "${OUT:-$tree/out/e2e-install}")
TIMEOUT=${TIMEOUT:-300}
LOST=${LOST:-30}

# Names in the manifests.
driver=csi.touchstone.dev
namespace=touchstone
startup_taint=$driver/agent-not-ready
# shellcheck disable=SC2034 # of install.sh alone
snapshots=volumesnapshots.snapshot.storage.k8s.io
pool=${POOL:-/var/lib/touchstone}
prefix=touchstone-e2e # of the namespaces that are made here
parts=$tree/test/e2e/install

# shellcheck source=test/e2e/install/report.sh
. "$parts/report.sh"
# shellcheck source=test/e2e/install/images.sh
. "$parts/images.sh"
# shellcheck source=test/e2e/install/deploy.sh
. "$parts/deploy.sh"
# shellcheck source=test/e2e/install/watch.sh
. "$parts/watch.sh"
# shellcheck source=test/e2e/install/examples.sh
. "$parts/examples.sh"
# shellcheck source=test/e2e/install/pages.sh
. "$parts/pages.sh"
# shellcheck source=test/e2e/install/disruption.sh
. "$parts/disruption.sh"

wants() { case " $STEPS " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

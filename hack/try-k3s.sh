#!/usr/bin/env bash
# Tries Touchstone on k3s on this machine, step by step, as root: starts the service k3s,
# installs the driver, uses a volume, a snapshot and its restoration, and uninstalls the
# driver.
#
#   sudo hack/try-k3s.sh [--help]
#
# The steps, STEPS and other settings are those of hack/try-steps.sh: --help prints
# them. `STEPS=down hack/try-k3s.sh` stops a service that was started here.
#
# Exit code: 0 all steps are ok, 1 one failed, 2 something that is needed is missing.
set -euo pipefail

program=try-k3s
programs='k3s systemctl'
# The node is this machine; the kubelet in k3s has the usual directory.
shares_kernel=yes
KUBECTL=${KUBECTL:-k3s kubectl}
# Images in k3s are in a containerd of its own; its ctr has the namespace k8s.io.
IMPORT='k3s ctr images import'

has_cluster() { k3s kubectl get --raw /readyz >/dev/null 2>&1; }
create_cluster() { systemctl start k3s; }
delete_cluster() { systemctl stop k3s; }

# shellcheck source=hack/try-steps.sh
. "$(dirname "$0")/try-steps.sh"
[[ ${1:-} != --help ]] || usage
# The kubeconfig belongs to root, and so does the socket of containerd.
[[ $(id -u) == 0 ]] || misuse "run it as root: sudo $0"
try_all

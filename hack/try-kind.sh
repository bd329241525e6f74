#!/usr/bin/env bash
# Tries Touchstone on kind, step by step: creates a cluster, installs the driver, uses a
# volume, a snapshot and its restoration, and uninstalls the driver.
#
#   hack/try-kind.sh [--help]
#
# CLUSTER (touchstone) names the cluster. The steps, STEPS and other settings are those
# of hack/try-steps.sh: --help prints them. `STEPS=down hack/try-kind.sh` deletes the cluster.
#
# Exit code: 0 all steps are ok, 1 one failed, 2 something that is needed is missing.
set -euo pipefail

program=try-kind
cluster=${CLUSTER:-touchstone}
programs=kind
# The node is a container, with this machine's kernel.
shares_kernel=yes
KUBECTL=${KUBECTL:-kubectl --context kind-$cluster}
IMPORT="kind load image-archive --name $cluster"

has_cluster() { kind get clusters 2>/dev/null | grep -Fqx "$cluster"; }
create_cluster() { kind create cluster --name "$cluster" --wait 5m; }
delete_cluster() { kind delete cluster --name "$cluster"; }

# shellcheck source=hack/try-steps.sh
. "$(dirname "$0")/try-steps.sh"
[[ ${1:-} != --help ]] || usage
try_all

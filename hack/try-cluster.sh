#!/usr/bin/env bash
# Tries Touchstone on an existing cluster, step by step: installs the driver, uses a
# volume, a snapshot and its restoration, and uninstalls the driver.
#
#   KUBECONFIG=FILE IMPORT='ctr --namespace k8s.io images import' hack/try-cluster.sh [--help]
#
# IMPORT brings an archive of an image, whose path is added to it, to the nodes. The steps,
# STEPS and other settings are those of hack/try-steps.sh: --help prints them.
#
# Exit code: 0 all steps are ok, 1 one failed, 2 something that is needed is missing.
set -euo pipefail

program=try-cluster

has_cluster() { true; }
create_cluster() { false; }
delete_cluster() { false; }

# shellcheck source=hack/try-steps.sh
. "$(dirname "$0")/try-steps.sh"
[[ ${1:-} != --help ]] || usage
try_all

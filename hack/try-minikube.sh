#!/usr/bin/env bash
# Tries Touchstone on minikube, step by step: creates a profile, installs the driver, uses
# a volume, a snapshot and its restoration, and uninstalls the driver.
#
#   hack/try-minikube.sh [--help]
#
# CLUSTER (touchstone) names the profile, DRIVER minikube's driver (what minikube chooses).
# The steps, STEPS and other settings are those of hack/try-steps.sh: --help prints
# them. `STEPS=down hack/try-minikube.sh` deletes the profile.
#
# Exit code: 0 all steps are ok, 1 one failed, 2 something that is needed is missing.
set -euo pipefail

program=try-minikube
cluster=${CLUSTER:-touchstone}
programs=minikube
KUBECTL=${KUBECTL:-kubectl --context $cluster}
IMPORT="minikube --profile $cluster image load"
# /data is on the disk of a virtual machine, whose root directory is in memory; and it is
# on the disk of a container, too.
POOL=${POOL:-/data/touchstone}

# Also one that is stopped, which minikube's status fails for.
has_cluster() { minikube profile list -o json 2>/dev/null | jq -e --arg name "$cluster" 'any((.valid + .invalid)[]?; .Name == $name)' >/dev/null; }
create_cluster() { minikube --profile "$cluster" start --wait all ${DRIVER:+--driver "$DRIVER"}; }
delete_cluster() { minikube --profile "$cluster" delete; }

# shellcheck source=hack/try-steps.sh
. "$(dirname "$0")/try-steps.sh"
[[ ${1:-} != --help ]] || usage
try_all

# shellcheck shell=bash
# The steps of hack/try-kind.sh, try-k3s.sh, try-minikube.sh and try-cluster.sh: install
# Touchstone on a cluster, use a volume, a snapshot and its restoration, and uninstall
# it. Each step ends with "ok: STEP: result", or with "failed: STEP: cause" and a remedy.
#
# STEPS names some of them, in their order (default: all but down); what a step needs of
# earlier steps is in the cluster and in $OUT. Those of test/e2e/install.sh are further
# settings: METHOD, KUBECTL, KUBELET_DIR, POOL, SIDECARS, BUSYBOX, IMAGE, TIMEOUT, OUT.
#
#   prerequisites  the programs are there, and the kernel's drivers where the node has this kernel
#   cluster        a cluster is there, or is created; it is of Kubernetes 1.36 or newer
#   images         Touchstone's image is built and loaded, and so are the sidecars' unless SIDECARS=registry
#   snapshots      the types of snapshots and their controller are there, or are installed
#   install        the manifests, or with METHOD=helm the chart, are applied
#   ready          all pods are ready and of that image
#   registered     a CSINode has the driver
#   doctor         the doctor finds no problem in any pod, and the HTTP endpoint answers
#   volume         a claim is bound, and a pod writes to its volume
#   snapshot       a snapshot of that volume is ready
#   restore        a volume of the snapshot has its data
#   health         all volumes are healthy, and with METHOD=helm `helm test` passes
#   uninstall      all of it is deleted, and nothing is left on the node
#   down           the cluster is deleted, if it was created by the step cluster
#
# A script that sources this file sets `program` (its name in messages), `programs` (what
# it needs beside kubectl, jq, git and go), IMPORT, KUBECTL and KUBELET_DIR where
# they are not as usual, shares_kernel=yes where the node has this machine's kernel, and
# the functions has_cluster, create_cluster and delete_cluster. Then it calls try_all.

tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck disable=SC2154 # program is the sourcing script's
OUT=${OUT:-$tree/out/$program}
SIDECARS=${SIDECARS:-registry}
STEPS=${STEPS:-prerequisites cluster images snapshots install ready registered doctor volume snapshot restore health uninstall}
all_steps='prerequisites cluster images snapshots install ready registered doctor volume snapshot restore health uninstall down'
# shellcheck source=test/e2e/install/settings.sh
. "$tree/test/e2e/install/settings.sh"

trial=$prefix-try # the namespace of the application
examples=$tree/examples/snapshot-restore

# These replace the functions of report.sh: a step ends with its result, or with a cause and a remedy.
reported=10 misused=12
remedy='' current=''
say() { echo "$program: $*"; }
proved() { echo "ok: $current: $*"; }
die() { failed "$reported" "$@"; }
cannot() { failed "$misused" "$@"; }
failed() {
	local code=$1
	shift
	echo "failed: $current: $*" >&2
	[[ -z $remedy ]] || echo "  remedy: $remedy" >&2
	exit "$code"
}

# misuse MESSAGE: ends the script where no step is under way.
misuse() {
	say "$*" >&2
	exit 2
}

# where_from PROGRAM: how it is installed.
where_from() {
	case $1 in
	kind) echo 'go install sigs.k8s.io/kind@latest, or https://kind.sigs.k8s.io' ;;
	minikube) echo 'https://minikube.sigs.k8s.io/docs/start' ;;
	k3s) echo 'curl -sfL https://get.k3s.io | sh -' ;;
	kubectl) echo 'https://kubernetes.io/docs/tasks/tools' ;;
	helm) echo "https://helm.sh, or HELM='go run helm.sh/helm/v4/cmd/helm@v4.3.1'" ;;
	go) echo 'https://go.dev/dl' ;;
	*) echo "install the package $1, for example: sudo apt-get install $1" ;;
	esac
}

# usage: the head of the script and of this file.
usage() {
	sed -n '2,/^$/s/^# \{0,1\}//p' "$0" | sed '/^set -/d'
	sed -n '/^# STEPS names/,/^#   down/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
	exit 0
}

try_prerequisites() {
	local each wanted=(jq git go "${KUBECTL%% *}")
	read -ra more <<<"${programs:-}"
	each=${HELM:-helm}
	[[ $METHOD != helm ]] || wanted+=("${each%% *}")
	for each in "${wanted[@]}" "${more[@]}"; do
		remedy=$(where_from "$each")
		command -v "$each" >/dev/null || die "there is no $each"
	done
	if [[ ${shares_kernel:-} == yes ]]; then
		remedy='sudo modprobe -a loop xfs btrfs; the step doctor reports what is missing'
		[[ -e /dev/loop-control ]] || die "this kernel, which the node has too, has no loop driver"
		grep -qw xfs /proc/filesystems || modprobe xfs 2>/dev/null || die "this kernel, which the node has too, has no xfs"
	fi
	wanted+=("${more[@]}")
	proved "${wanted[*]} are there"
}

try_cluster() {
	local minor created=''
	mkdir -p "$OUT"
	if ! has_cluster; then
		remedy="see $OUT/cluster.log"
		create_cluster >"$OUT/cluster.log" 2>&1 || die "the cluster can not be created: $(tail -n 1 "$OUT/cluster.log")"
		echo "${cluster:-}" >"$OUT/created" && created=', created now'
	fi
	remedy='check the cluster and KUBECONFIG'
	kube version -o json >"$OUT/version.json" 2>"$OUT/version.error" || die "the cluster does not answer: $(tail -n 1 "$OUT/version.error")"
	await "a node is registered" node_known
	kube wait --for condition=Ready nodes --all --timeout "${TIMEOUT}s" >/dev/null || die "a node is not ready"
	remedy='create a cluster of Kubernetes 1.36 or newer'
	minor=$(jq -r '.serverVersion.minor | sub("[^0-9].*"; "")' "$OUT/version.json")
	((minor >= 36)) || die "the cluster is of Kubernetes 1.$minor"
	proved "Kubernetes 1.$minor answers, its nodes are ready$created"
}
node_known() { [[ -n $(kube get nodes -o name) ]]; }

try_images() {
	local archive
	remedy="see $OUT/build.log and $OUT/import.log; IMAGE=ARCHIVE takes an archive that is built already"
	mkdir -p "$OUT/images"
	archive=${IMAGE:-$(build_here)}
	import "$archive"
	sidecars_are_there
	record_images "$(name_in "$archive")"
	proved "$(image now) is built and loaded$([[ -s $OUT/sidecars ]] && sed 's,.*/,\, ,' "$OUT/sidecars" | tr -d '\n')"
}

# Marks the types that this script has installed, and so may delete.
mark=touchstone.dev/installed-by
installed_here() { [[ -n $(kube get crd "$snapshots" --ignore-not-found -o "jsonpath={.metadata.annotations.${mark//./\\.}}") ]]; }

try_snapshots() {
	local served
	remedy='kubectl -n kube-system describe deployment/snapshot-controller: can the node pull its image? make sidecars, SIDECARS=out/sidecars'
	if [[ -z $(kube get crd "$snapshots" --ignore-not-found -o name) ]] || installed_here; then
		apply_prerequisites "$(image now)"
		kube annotate --overwrite crd "$snapshots" "$mark=$program" >/dev/null
		proved "the types of snapshots and their controller are installed"
		return
	fi
	remedy='install a version of the types that has v1'
	served=$(kube get crd "$snapshots" -o 'jsonpath={.spec.versions[?(@.served==true)].name}')
	[[ " $served " == *' v1 '* ]] || die "the cluster has the types of snapshots in version $served only"
	proved "the cluster has the types of snapshots; whether their controller runs, the step snapshot shows"
}

try_install() {
	remedy="see $OUT/apply.log and $OUT/helm.log; docs/install.md, Troubleshooting"
	if [[ -n $(kube get csidriver "$driver" --ignore-not-found -o name) && -z $(kube get namespace "$namespace" --ignore-not-found -o name) ]]; then
		remedy='uninstall it: docs/uninstall.md'
		die "the cluster has $driver, but not in the namespace $namespace"
	fi
	apply_driver "$(image now)"
	proved "$OVERLAY is applied ($METHOD)"
}

try_ready() {
	remedy="kubectl -n $namespace describe pods; docs/install.md, Troubleshooting"
	[[ -n $(workloads) ]] || die "there is no DaemonSet or StatefulSet in the namespace $namespace"
	rolled_out
	versions_are "$(image now)"
	proved "$(workloads | xargs) are ready, and of $(image now)"
}

try_registered() {
	remedy="is the kubelet's --root-dir $KUBELET_DIR? If not, set KUBELET_DIR (docs/registration.md)"
	await "a node has $driver" registered
	proved "$driver is on $(csinodes | xargs)"
}

# example FILE: applies it and waits for its result.
example() { applied "$trial" "$examples/$1" && await "$1" settled "$trial"; }

try_volume() {
	remedy="kubectl -n $trial describe pvc,pods; kubectl -n $namespace logs sts/touchstone-controller -c provisioner; can the node pull $BUSYBOX?"
	[[ -n $(kube get namespace "$trial" --ignore-not-found -o name) ]] || kube create namespace "$trial" >/dev/null
	example 1-app.yaml
	proved "a claim is bound, and a pod has written to its volume: $(kube -n "$trial" get pvc ledger -o 'jsonpath={.spec.volumeName}')"
}

try_snapshot() {
	remedy="kubectl -n $trial describe volumesnapshot ledger; no event there means that no snapshot controller runs"
	example 2-snapshot.yaml
	example 3-mishap.yaml
	proved "a snapshot of the volume is ready, and the volume was overwritten since"
}

try_restore() {
	remedy="kubectl -n $trial describe pvc,jobs; kubectl -n $trial logs job/ledger-restored"
	example 4-restore.yaml
	proved "a larger volume of the snapshot has the data from before"
}

try_doctor() {
	remedy='what the doctor says (docs/doctor.md); a pool of an earlier installation with another POOL: docs/uninstall.md, Data on the nodes'
	doctor_finds_nothing
	http_answers
}

try_health() {
	remedy='docs/volume-health.md'
	in_driver "$(controller)" touchstone ctl volume health >"$OUT/health" || die "not all volumes are healthy: $(cat "$OUT/health")"
	proved "the driver reports all volumes as healthy"
	[[ $METHOD != helm ]] || chart_tested
}

try_uninstall() {
	remedy='docs/uninstall.md, In the wrong order'
	# The node is seen by a pod: with the driver's image, while that is installed.
	watch_node
	kube delete namespace "$trial" --ignore-not-found --timeout "${TIMEOUT}s" >"$OUT/delete.log" 2>&1 ||
		die "the application is not deleted: $(tail -n 1 "$OUT/delete.log")"
	! kube get csidriver "$driver" >/dev/null 2>&1 || [[ -z $(workloads) ]] || volumes_are_gone
	uninstalled
	kube delete namespace "$prefix-watch" --timeout "${TIMEOUT}s" >"$OUT/delete.log" 2>&1 || die "the namespace $prefix-watch is not deleted"
	if installed_here; then
		kube delete --ignore-not-found --timeout "${TIMEOUT}s" -f "$OUT/prerequisites.yaml" >"$OUT/delete.log" 2>&1 ||
			die "the prerequisites are not deleted: $(tail -n 1 "$OUT/delete.log")"
		proved "the types of snapshots and their controller are deleted"
	fi
}

try_down() {
	[[ -e $OUT/created && $(<"$OUT/created") == "${cluster:-}" ]] || { proved "the cluster was not created here, and stays" && return; }
	remedy="see $OUT/cluster.log"
	delete_cluster >"$OUT/cluster.log" 2>&1 || die "the cluster can not be deleted: $(tail -n 1 "$OUT/cluster.log")"
	rm "$OUT/created"
	proved "the cluster is deleted"
}

# try_step STEP: in a shell of its own, so that an error ends the step and not its report.
try_step() {
	local code rest
	current=$1
	set +e
	(
		set -e
		"try_$1"
	)
	code=$?
	set -e
	case $code in
	0) return ;;
	"$reported") code=1 ;;
	"$misused") code=2 ;;
	*)
		echo "failed: $1: a command ended with $code" >&2
		echo "  remedy: its message is above; files of this step are in $OUT" >&2
		code=1
		;;
	esac
	case $1 in prerequisites | cluster | down) ;; *)
		collect || true
		say "STEPS=uninstall deletes what was made" >&2
		;;
	esac
	rest=" $STEPS "
	rest="$1 ${rest#* "$1" }"
	say "after the remedy, go on with STEPS='${rest% }'" >&2
	exit "$code"
}

try_all() {
	local each
	for each in $STEPS; do
		[[ " $all_steps " == *" $each "* ]] || misuse "no step is called $each; there are: $all_steps"
	done
	mkdir -p "$OUT"
	for each in $all_steps; do
		! wants "$each" || try_step "$each"
	done
	say "all steps are ok, after $SECONDS s"
}

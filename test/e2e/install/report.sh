# shellcheck shell=bash
# Functions of test/e2e/install.sh for the cluster and for output: kubectl,
# waiting, what was proved, and the files for the analysis of a failure.

say() { echo "${program:-e2e-install}: $*"; }
die() { say "$*" >&2; exit 1; }
cannot() { say "$*" >&2; exit 2; }

# shellcheck disable=SC2086 # KUBECTL may have arguments
kube() { $KUBECTL "$@"; }

# in_driver KIND/NAME COMMAND...: in the driver's container.
in_driver() {
  local pod=$1
  shift
  kube -n "$namespace" exec "$pod" -c touchstone -- "$@"
}

# step FUNCTION ARGUMENT...: one part of the whole. Each says itself what it proved.
step() {
  local began=$SECONDS
  say "== ${*//_/ }"
  "$@"
  say "== ${*//_/ } ($((SECONDS - began)) s)"
}
proved() { say "proved: $*"; }

# await WHAT COMMAND...: until it succeeds. What it last said is shown if it does not,
# or if it fails with $never: then there is nothing to wait for.
never=3
await() {
  local what=$1 until=$((SECONDS + TIMEOUT)) said status
  shift
  while :; do
    status=0
    said=$("$@" 2>&1) || status=$?
    [ "$status" != 0 ] || return 0
    [ "$status" != "$never" ] || die "never: $what
$said"
    [ "$SECONDS" -lt "$until" ] || die "after $TIMEOUT s still not: $what${said:+
$said}"
    sleep 1
  done
}

# none COMMAND...: succeeds if the command succeeds without output.
none() {
  local output
  output=$("$@") || { echo "unknown: $output" && return 1; }
  [ -z "$output" ] || { echo "$output" && return 1; }
}

# same WHAT BEFORE AFTER: dies with the difference.
same() {
  [ "$2" = "$3" ] || die "$1 changed:
$(diff <(echo "$2") <(echo "$3"))"
}

# collect: files for the analysis of a failure, into $OUT/failure.
collect() {
  local to=$OUT/failure pod container each
  rm -rf "$to" && mkdir -p "$to"
  kube get pods,jobs,pvc,pv,volumeattachments,csinodes,volumesnapshots,volumesnapshotcontents -A -o wide >"$to/objects" 2>&1
  kube get events -A --sort-by=.metadata.creationTimestamp >"$to/events" 2>&1
  while read -r each pod; do
    kube -n "$each" describe pod "$pod" >"$to/$each.$pod.describe" 2>&1
    for container in $(kube -n "$each" get pod "$pod" -o 'jsonpath={.spec.containers[*].name}'); do
      kube -n "$each" logs "$pod" -c "$container" >"$to/$each.$pod.$container.log" 2>&1
      kube -n "$each" logs "$pod" -c "$container" --previous >"$to/$each.$pod.$container.before.log" 2>/dev/null ||
        rm -f "$to/$each.$pod.$container.before.log"
    done
  done < <(kube get pods -A --no-headers -o custom-columns=N:.metadata.namespace,P:.metadata.name |
    grep -E "^($namespace|$prefix|kube-system)")
  say "objects, events and logs are in $to" >&2
}

# finish: at the end, whatever has happened.
finish() {
  local status=$?
  trap - EXIT
  [ "$status" != 1 ] || collect || true
  if [ "$KEEP" = yes ]; then
    say "KEEP=yes: the cluster is left as it is" >&2
  else
    clear_away >"$OUT/clear.log" 2>&1 || say "not all could be taken away again: $OUT/clear.log" >&2
  fi
  exit "$status"
}

# clear_away: what a run has made and did not come to take away. In the order in
# which volumes can go: users, claims, the driver.
clear_away() {
  local each left=0
  [ -n "${driver_installed:-}" ] || return 0
  [ -z "${under_way:-}" ] || unmade "$under_way" || left=1
  for each in $(kube get namespaces -o name | grep "/$prefix" | grep -v -- "-watch\$"); do
    kube delete "$each" --timeout "${TIMEOUT}s" || left=1
  done
  kube delete namespace "$prefix-watch" --ignore-not-found || left=1
  kube taint nodes --all "$startup_taint-" || true # most have none
  delete_driver || left=1
  [ "$PREREQUISITES" != yes ] || kube delete --ignore-not-found --timeout "${TIMEOUT}s" -f "$OUT/prerequisites.yaml" || left=1
  return "$left"
}

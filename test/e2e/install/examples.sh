# shellcheck shell=bash
# Applies the applications in examples/ and waits until each has the result that it states: proof lies
# in their objects, as examples/README.md says, so all are treated alike.

# The features, in the order of a volume's lifecycle; then the others.
life='persistent-volume snapshot-restore clone expand-online expand-offline volume-attributes read-write-once-pod generic-ephemeral csi-ephemeral raw-block'

examples() {
  local each all=$life
  if [ "$EXAMPLES" != all ]; then
    echo "$EXAMPLES"
    return
  fi
  for each in $life; do
    [ -n "$(steps_of "$each")" ] || die "there is no examples/$each: which one shows that feature now?"
  done
  for each in "$tree"/examples/*/[0-9]*.yaml; do
    each=$(basename "$(dirname "$each")")
    [[ " $all " == *" $each "* ]] || all+=" $each"
  done
  [ -z "$(steps_of "$OVERLAY")" ] || all="$all $OVERLAY"
  for each in $all; do
    ! fits "$each" || echo "$each"
  done
}

# steps_of EXAMPLE: its manifests, in order. One may be of the overlay alone.
steps_of() { find "$tree/examples" "$parts/overlays" -path "*/$1/[0-9]*.yaml" | sort -V; }

# fits EXAMPLE: the last column of the table there does not name the overlay, or all
# others.
fits() {
  local not_with mentioned=no
  not_with=$(sed -n "s#^| \[$1\](.*| *\([^|]*\) |\$#\1#p" "$tree/examples/README.md")
  [[ $not_with != *"\`$OVERLAY\`"* ]] || mentioned=yes
  if [[ $not_with == 'all but '* ]]; then
    [ "$mentioned" = no ] || return 0
  else
    [ "$mentioned" = yes ] || return 0
  fi
  say "not with $OVERLAY: $1" >&2 && return 1
}

# settled NAMESPACE: all that is in it is as expected. $never names what never will be.
settled() {
  local left
  kube -n "$1" get jobs,pods,deployments,statefulsets,persistentvolumeclaims,volumesnapshots,volumegroupsnapshots,events -o json >"$OUT/objects.json" 2>"$OUT/objects.error" ||
    { cat "$OUT/objects.error" && return 1; }
  left=$(jq -r -f "$parts/settled.jq" "$OUT/objects.json") || { echo "unknown" && return 1; }
  ! grep '^failed' <<<"$left" || return "$never"
  [ -z "$left" ] || { echo "$left" && return 1; }
}

# filled NAMESPACE: what is read, with the name that Kubernetes has given to the snapshot
# of a claim instead of SNAPSHOT-OF-THAT-CLAIM.
filled() {
  local text word claim name
  text=$(cat)
  while read -r word; do
    claim=${word#SNAPSHOT-OF-}
    name=$(kube -n "$1" get volumesnapshots -o json | jq -er --arg claim "${claim,,}" \
      '.items[] | select(.spec.source.persistentVolumeClaimName == $claim) | .metadata.name') || die "there is no snapshot of ${claim,,}"
    text=${text//$word/$name}
  done < <(grep -oE 'SNAPSHOT-OF-[A-Z0-9-]+' <<<"$text" | sort -u)
  echo "$text"
}

# What is in no namespace names the one of those who follow examples/README.md.
applied() { # applied NAMESPACE FILE
  sed "s#busybox:1.37#$BUSYBOX#g; s#namespace: example\b#namespace: $1#g" "$2" | filled "$1" | kube -n "$1" apply -f - >"$OUT/apply.log" 2>&1 || die "$2 is not taken: $(cat "$OUT/apply.log")"
}

# application EXAMPLE: step by step, and away again, with all that was made for it,
# while the next one comes.
application() {
  local name=$1 in=$prefix-$1 file began=$SECONDS
  kube create namespace "$in" >/dev/null
  under_way=$name
  for file in $(steps_of "$name"); do
    applied "$in" "$file"
    await "$name: $(basename "$file")" settled "$in"
  done
  example_page "$name"
  proved "examples/$name: $(steps_of "$name" | xargs -n 1 basename -s .yaml | xargs) ($((SECONDS - began)) s)"
  unmade "$name" >"$OUT/delete.log" 2>&1
  kube delete namespace "$in" --wait=false >/dev/null
}

# unmade EXAMPLE: its objects, also those that are in no namespace.
unmade() {
  local file
  for file in $(steps_of "$1" | tac); do
    kube -n "$prefix-$1" delete --ignore-not-found --wait=false -f "$file"
  done
  under_way=''
}

going() {
  kube get namespaces -o json | jq -r '.items[] | select(.metadata.deletionTimestamp)
    | "\(.metadata.name): \([.status.conditions[]? | select(.status == "True") | .message] | join("; "))"'
}

applications() {
  local each
  say '== applications'
  pages_are_there
  for each in $(examples); do application "$each"; done
  await "the applications are gone" none going
  volumes_are_gone
  proved "all their volumes and snapshots are gone from the API, the driver and the pool, and nothing is mounted or attached"
}

# Volumes and snapshots as the driver lists them.
driver_volumes() { in_driver "$(controller)" touchstone ctl volume list -o json | jq -r '.entries[]?.volume.volume_id' | sort; }
driver_snapshots() { in_driver "$(controller)" touchstone ctl snapshot list -o json | jq -r '.entries[]?.snapshot.snapshot_id' | sort; }
api_volumes() { kube get pv -o json | jq -r --arg driver "$driver" '.items[].spec.csi | select(.driver == $driver) | .volumeHandle' | sort; }
# What is in the pool, also in an embedded one; unfinished and foreign files among it.
pool_files() { # pool_files DIRECTORY
  # shellcheck disable=SC2016 # expanded there
  in_driver "$(controller)" sh -c 'for each in "$1" "$1/mounted"; do
    ls -A "$each/$2" 2>/dev/null; done; true' sh "$pool/pool" "$1" | sort
}
# Who makes volumes: the StatefulSet, or in node-local the DaemonSet.
controller() { workloads | grep statefulset || workloads | head -n 1; }

volumes_are_gone() {
  local directory
  await "no PersistentVolume is left" none api_volumes
  await "the driver has no volume" none driver_volumes
  await "the driver has no snapshot" none driver_snapshots
  for directory in images directories snapshots; do await "nothing is in the pool's $directory" none pool_files "$directory"; done
  await "nothing is mounted" none driver_mounts
  await "no volume is attached to a device" none devices
}

# shellcheck shell=bash
# Runs what the pages print for a cluster, as it is printed: their blocks of shell with the mark cluster.

# Where the pages are run: a copy of the tree, whose manifests have the images and directories of this cluster.
pages=$OUT/pages

# pages_are_there: the copy, of what is committed.
pages_are_there() {
  rm -rf "$pages" && mkdir -p "$pages"
  git -C "$tree" archive HEAD deploy docs examples | tar -x -C "$pages"
  find "$pages/deploy" "$pages/docs" "$pages/examples" -type f -exec sed -i \
    "s#/var/lib/kubelet#$KUBELET_DIR#g; s#/var/lib/touchstone#$pool#g; s#/data/touchstone#$pool/moved#g; s#busybox:1\.37#$BUSYBOX#g" {} +
  programs
}

# programs: in $OUT/path, those that pages and scripts call by their names.
programs() {
  local each
  rm -rf "$OUT/path" && mkdir -p "$OUT/path"
  # shellcheck disable=SC2016 # expanded there
  for each in "kubectl=$KUBECTL \${NAMESPACE:+--namespace=\$NAMESPACE}" "helm=${HELM:-$(command -v helm || echo helm)}" "sudo="; do
    printf '#!/bin/sh\nexec %s "$@"\n' "${each#*=}" >"$OUT/path/${each%%=*}"
  done
  chmod 755 "$OUT"/path/*
}

# blocks FILE: how many the page has.
blocks() { grep -c '^```sh cluster$' "$pages/$1" || true; }

# page FILE [NUMBER...]: runs those blocks of a page, or all. Examples run in their directory.
page() {
  local file=$1 number script directory=$pages numbers
  shift
  numbers=("$@")
  (($#)) || mapfile -t numbers < <(seq "$(blocks "$file")")
  [[ $file != examples/*/* ]] || directory=$pages/$(dirname "$file")
  for number in "${numbers[@]}"; do
    script=$(awk -v number="$number" '/^```sh cluster$/ { found++; if (found == number) { inside = 1; next } } /^```$/ { inside = 0 } inside' "$pages/$file")
    [ -n "$script" ] || die "$file has no block $number for a cluster"
    echo "$file $number" >>"$OUT/pages.run"
    (cd "$directory" && PATH=$OUT/path:$PATH bash -euo pipefail -c "$script") >"$OUT/page.log" 2>&1 ||
      die "block $number of $file fails as it is printed:
$script
$(cat "$OUT/page.log")"
  done
  proved "$file, blocks ${*:-all}: they run as they are printed"
}

# example_page NAME: what the example's page says, when all is applied.
example_page() {
  [ "$(blocks "examples/$1/README.md")" = 0 ] || NAMESPACE=$prefix-$1 page "examples/$1/README.md"
}

# pages_run: all pages but those of the examples, in the order of a reader, on a cluster without the driver.
pages_run() {
  local latest=$OUT/images/touchstone-latest.tar before
  pages_are_there
  : >"$OUT/pages.run"
  mkdir -p "$OUT/images"
  "$tree/hack/build-image.sh" --version latest --archive "$latest" >"$OUT/build-latest.log" 2>&1 || cannot "building the image failed: $OUT/build-latest.log"
  import "$latest"
  OVERLAY=snapshot-metadata sidecars_are_there
  # What is to be taken away after a failure.
  driver_installed=yes
  kube kustomize "$pages/deploy/kustomize/overlays/snapshot-metadata" >"$OUT/driver.yaml"
  kube kustomize "$pages/deploy/kustomize/prerequisites" >"$OUT/prerequisites.yaml"

  page docs/install.md 1 3 4
  page docs/doctor.md
  page docs/install.md 5 6
  page docs/volume-health.md
  before=$(kube config view --minify -o jsonpath='{..namespace}')
  page examples/README.md
  kube config set-context --current --namespace="${before:-default}" >/dev/null # the page has set another one
  page docs/upgrade.md
  rolled_out
  page docs/snapshots.md
  rolled_out
  page docs/uninstall.md 1 2
  (cd "$pages" && kube delete -f examples/persistent-volume/1-ext4.yaml >/dev/null)
  await "no PersistentVolume is left" none api_volumes
  kube delete -k "$pages/deploy/kustomize/overlays/snapshot-metadata" --ignore-not-found >/dev/null
  kube delete snapshotmetadataservices "$driver" --ignore-not-found >/dev/null

  page docs/install.md 7
  page docs/install.md 3
  page docs/uninstall.md 3
  METHOD=helm
  page docs/install.md 2 3 8
  startup_taint_goes
  page docs/uninstall.md 4 5

  all_pages_ran
}

# startup_taint_goes: a taint with which a node began, when the driver is ready there.
startup_taint_goes() {
  kube taint nodes --all "$startup_taint=:NoSchedule" --overwrite >/dev/null
  helm upgrade "$namespace" "$pages/deploy/helm/touchstone" --reset-then-reuse-values --set "node.settings.startup-taint=$startup_taint" >"$OUT/helm.log" 2>&1 ||
    die "helm upgrade failed: $(tail -n 5 "$OUT/helm.log")"
  rolled_out
  await "no node has the taint $startup_taint" none tainted
  proved "the node plugin has removed the startup taint of its node"
}
tainted() { kube get nodes -o json | jq -r --arg key "$startup_taint" '.items[] | select(any(.spec.taints[]?; .key == $key)) | .metadata.name'; }

# all_pages_ran: no page has a block that is not run, but for the examples', which the step examples runs.
all_pages_ran() {
  local file number left=''
  while read -r file; do
    file=${file#"$pages/"}
    for number in $(seq "$(blocks "$file")"); do
      grep -qFx "$file $number" "$OUT/pages.run" || [[ $file == examples/*/* ]] || left+=" $file:$number"
    done
  done < <(grep -rl --include='*.md' '^```sh cluster$' "$pages")
  [ -z "$left" ] || die "blocks of pages that no step runs:$left"
  proved "there is no block for a cluster that was not run"
}

# shellcheck shell=bash
# Installing, upgrading and uninstalling, as docs/install.md, docs/upgrade.md and
# docs/uninstall.md say.

# kustomization DIRECTORY RESOURCE IMAGE: one that puts the images into RESOURCE.
kustomization() {
  local each
  rm -rf "$1" && mkdir -p "$1"
  {
    echo 'apiVersion: kustomize.config.k8s.io/v1beta1'
    echo 'kind: Kustomization'
    echo "resources: [$(realpath --relative-to="$1" "$2")]"
    echo 'images:'
    echo "  - {name: touchstone, newName: ${3%:*}, newTag: \"${3##*:}\"}"
    while read -r each; do
      echo "  - {name: ${each%:*}, newTag: \"${each##*:}\"}"
    done < <(jq -r '.sidecars[]' "$OUT/images.json" 2>/dev/null)
  } >"$1/kustomization.yaml"
}

overlay() {
  case $OVERLAY in
    */*) echo "$OVERLAY" ;;
    *) echo "$tree/deploy/kustomize/overlays/$OVERLAY" ;;
  esac
}

# built DIRECTORY: the objects, for this cluster's kubelet.
built() { kube kustomize "$1" | sed "s#/var/lib/kubelet#$KUBELET_DIR#g; s#/var/lib/touchstone#$pool#g"; }

# manifests: all that will be applied, with the images that it names by itself.
manifests() {
  built "$(overlay)"
  [ "$PREREQUISITES" = no ] || built "$tree/deploy/kustomize/prerequisites"
}

apply_driver() { # apply_driver IMAGE
  driver_installed=yes
  case $METHOD in
    manifests) apply_manifests "$1" ;;
    helm) apply_chart "$1" ;;
    *) cannot "METHOD is $METHOD: it has to be manifests or helm" ;;
  esac
  # What is to be done after that: in snapshot-metadata, its certificate.
  [ ! -x "$(overlay)/certificate.sh" ] || KUBECTL=$KUBECTL "$(overlay)/certificate.sh" >"$OUT/certificate.log" 2>&1 ||
    die "no certificate: $(cat "$OUT/certificate.log")"
}

apply_manifests() { # apply_manifests IMAGE
  kustomization "$OUT/kustomize" "$(overlay)" "$1"
  built "$OUT/kustomize" >"$OUT/driver.yaml"
  kube apply -f "$OUT/driver.yaml" >"$OUT/apply.log"
}

# shellcheck disable=SC2086 # HELM may have arguments
helm() { ${HELM:-command helm} --namespace "$namespace" "$@"; }

apply_chart() { # apply_chart IMAGE
  local chart=$tree/deploy/helm/touchstone
  kube create namespace "$namespace" --dry-run=client -o yaml |
    kube label --local -f - -o yaml pod-security.kubernetes.io/enforce=privileged | kube apply -f - >"$OUT/apply.log"
  chart_values "$1" >"$OUT/values.yaml"
  helm upgrade --install "$namespace" "$chart" --values "$chart/values/$OVERLAY.yaml" --values "$OUT/values.yaml" \
    >"$OUT/helm.log" 2>&1 || die "helm upgrade failed: $(tail -n 5 "$OUT/helm.log")"
}

# chart_values IMAGE: the images, and the directories of this cluster's nodes.
chart_values() {
  local each name
  echo "image: {repository: ${1%:*}, tag: \"${1##*:}\"}"
  echo "kubeletDir: $KUBELET_DIR"
  [ "$pool" = /var/lib/touchstone ] || echo "pool: {volume: {hostPath: {path: $pool}}}"
  echo "sidecars:"
  while read -r each; do
    case $each in
      */csi-external-health-monitor-controller:*) name=healthMonitor ;;
      */csi-snapshot-metadata:*) name=snapshotMetadata ;;
      */csi-*) name=${each##*/csi-} && name=${name%:*} ;;
      *) continue ;; # the snapshot controller is a prerequisite
    esac
    echo "  $name: {tag: \"${each##*:}\"}"
  done < <(jq -r '.sidecars[]' "$OUT/images.json" 2>/dev/null)
}

delete_driver() {
  if [ "$METHOD" = helm ]; then
    ! helm status "$namespace" >/dev/null 2>&1 || helm uninstall "$namespace" --wait --timeout "${TIMEOUT}s" || return 1
    kube delete namespace "$namespace" --ignore-not-found --timeout "${TIMEOUT}s" || return 1
  elif [ -s "$OUT/driver.yaml" ]; then
    kube delete --ignore-not-found --timeout "${TIMEOUT}s" -f "$OUT/driver.yaml" || return 1
  fi
  # certificate.sh made it; the cluster may not have the type.
  kube delete --ignore-not-found snapshotmetadataservices "$driver" || true
}

# rolled_out: all pods are of what was applied last, and ready.
rolled_out() {
  local each
  for each in $(kube -n "$namespace" get daemonsets,statefulsets -o name); do
    kube -n "$namespace" rollout status "$each" --timeout "${TIMEOUT}s" >"$OUT/rollout.log" 2>&1 ||
      die "$each is not ready: $(tail -n 1 "$OUT/rollout.log")"
  done
}

# csinodes: the nodes that have the driver.
csinodes() {
  kube get csinodes -o json |
    jq -r --arg driver "$driver" '.items[] | select(any(.spec.drivers[]?; .name == $driver)) | .metadata.name'
}
registered() { [ -n "$(csinodes)" ]; }

# version STATEFULSET-OR-DAEMONSET: what the driver says of itself.
version() { in_driver "$1" touchstone ctl capabilities -o json | jq -er .info.vendor_version; }
workloads() { kube -n "$namespace" get daemonsets,statefulsets -o name; }

# versions_are IMAGE: everywhere.
versions_are() {
  local each
  for each in $(workloads); do
    [ "$(version "$each")" = "${1##*:}" ] || die "$each says that it is $(version "$each"), and not ${1##*:}"
  done
}

apply_prerequisites() { # apply_prerequisites IMAGE
  kustomization "$OUT/kustomize" "$tree/deploy/kustomize/prerequisites" "$1"
  built "$OUT/kustomize" >"$OUT/prerequisites.yaml"
  # Server-side: the annotation of the other way is too small for such types.
  kube apply --server-side --force-conflicts -f "$OUT/prerequisites.yaml" >"$OUT/apply-prerequisites.log"
  kube -n kube-system rollout status deployment/snapshot-controller --timeout "${TIMEOUT}s" >/dev/null ||
    die "the snapshot controller is not ready"
}

installed() { # installed now|before
  local which
  which=$(image "$1")
  if [ "$PREREQUISITES" != no ]; then
    driver_installed=yes
    apply_prerequisites "$which"
  fi
  apply_driver "$which"
  rolled_out
  await "a node has $driver" registered
  versions_are "$which"
  proved "$OVERLAY is installed ($METHOD), $(workloads | xargs) are ready and $which; $driver is on $(csinodes | xargs)"
  http_answers
  [ "$METHOD" != helm ] || chart_tested
}

# get KIND/NAME PATH: what the driver's HTTP endpoint answers in its pod, where there may be no client of HTTP.
get() {
  # shellcheck disable=SC2016 # expanded there
  in_driver "$1" bash -c 'exec 3<>/dev/tcp/127.0.0.1/9808 && printf "GET %s HTTP/1.0\r\n\r\n" "$1" >&3 && cat <&3' bash "$2"
}

http_answers() {
  local each path answer
  for each in $(workloads); do
    for path in /livez /readyz /metrics; do
      answer=$(get "$each" "$path") || die "$path of $each does not answer"
      [[ $answer == HTTP/1.?\ 200* ]] || die "$path of $each answers: $answer"
    done
    grep -q '^touchstone_build_info' <<<"$answer" || die "/metrics of $each lacks touchstone_build_info"
  done
  proved "/livez, /readyz and /metrics answer in $(workloads | xargs)"
}

chart_tested() {
  helm test "$namespace" --timeout "${TIMEOUT}s" >"$OUT/helm-test.log" 2>&1 || die "helm test failed: $(tail -n 5 "$OUT/helm-test.log")"
  proved "helm test passed: a pod wrote to a volume"
}

doctor_finds_nothing() {
  local each
  for each in $(workloads); do
    in_driver "$each" touchstone ctl doctor >"$OUT/doctor" 2>&1 || die "the doctor in $each finds a problem:
$(cat "$OUT/doctor")"
    sed -n '/^What to do/,$p' "$OUT/doctor"
    proved "the doctor in $each finds no problem"
  done
}

# Who lacks a right says so in its log, and goes on. An event in a namespace that is
# going is forbidden, too, to everybody.
nothing_forbidden() {
  local where each
  for where in "$namespace" kube-system; do
    for each in $(kube -n "$where" get pods -o name | grep -E "/($namespace|snapshot-controller)"); do
      kube -n "$where" logs "$each" --all-containers --prefix | grep 'forbidden: User' >"$OUT/forbidden" || continue
      die "$each lacks rights: $(head -n 5 "$OUT/forbidden")"
    done
  done
  proved "no sidecar was refused anything by the API server: the roles give what is needed"
}

# upgraded: with what $OUT/images.json calls now, while writers write (disruption.sh).
upgraded() {
  local mounts
  writers_are_well
  mounts=$(driver_mounts)
  versions_are "$(image before)"
  apply_driver "$(image now)"
  rolled_out
  await "a node has $driver again" registered
  versions_are "$(image now)"
  same "the driver's mounts" "$mounts" "$(driver_mounts)"
  writers_are_well
  newcomer_comes
  in_driver "$(controller)" touchstone ctl volume health >"$OUT/health" || die "not all volumes are healthy: $(cat "$OUT/health")"
  proved "upgraded from $(image before) to $(image now) while volumes were in use: nothing was unmounted, no writer was disturbed, all volumes are healthy, a new pod gets a new one"
}

left_in() { # left_in KIND
  kube get "$1" -o json | jq -r --arg driver "$driver" \
    '.items[] | select([.spec.csi.driver?, .spec.attacher?, .spec.driver?] | index($driver)) | .metadata.name'
}
objects_left() {
  kube get namespaces,clusterroles,clusterrolebindings,csidrivers,storageclasses,volumesnapshotclasses,volumeattributesclasses -o name |
    awk -v prefix="/$prefix" '/touchstone/ && !index($0, prefix)'
}

uninstalled() {
  await "no PersistentVolume is left" none left_in persistentvolumes
  await "no VolumeAttachment is left" none left_in volumeattachments
  await "no snapshot is left" none left_in volumesnapshotcontents
  await "no device has a volume attached" none devices
  delete_driver >"$OUT/delete.log" 2>&1 || die "deleting the driver failed:
$(cat "$OUT/delete.log")"
  await "no node has $driver" none csinodes
  await "nothing of the driver is mounted" none driver_mounts
  await "nothing is mounted in the pool" none pool_mounts
  await "the kubelet's directory of registrations has nothing of the driver" none registrations
  await "no object of the driver is left" none objects_left
  proved "uninstalled: no volume, attachment, snapshot, mount, device of a volume, registration or object of it is left; the pool and the state are where they were"
}

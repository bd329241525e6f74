# shellcheck shell=bash
# Which images test/e2e/install.sh uses, where they come from and how the nodes get
# them. Names and versions are read from the archives, so that what is installed is
# what was imported.

# name_in ARCHIVE: the image's name in what `docker save` and its kin write.
name_in() { tar -xOf "$1" manifest.json | jq -er '.[0].RepoTags[0]'; }

revision_before() {
  local tag
  if [ -n "${UPGRADE_FROM:-}" ]; then
    echo "$UPGRADE_FROM"
  elif tag=$(git -C "$tree" describe --tags --abbrev=0 HEAD^ 2>/dev/null); then
    echo "$tag"
  else
    # Not HEAD^: its driver may be the same, and an upgrade to itself shows nothing.
    echo "$(git -C "$tree" rev-list -1 HEAD -- cmd internal pkg go.mod go.sum Dockerfile)^"
  fi
}

# archive_of VERSION
archive_of() { echo "$OUT/images/touchstone-$1.tar"; }

# build_here: this tree's image. One that has uncommitted changes in it is never used again.
build_here() {
  local version archive
  version=$(git -C "$tree" describe --tags --always --dirty)
  archive=$(archive_of "$version")
  if [[ $version == *-dirty ]] || [ ! -s "$archive" ]; then
    "$tree/hack/build-image.sh" --version "$version" --archive "$archive" >"$OUT/build.log" 2>&1 ||
      cannot "building the image failed: $OUT/build.log"
  fi
  echo "$archive"
}

# build_before: the image of an older revision, by that revision's own script.
build_before() {
  local version archive source=$OUT/before
  version=$(git -C "$tree" describe --tags --always "$(revision_before)") || cannot "git knows no $(revision_before): set UPGRADE_FROM"
  archive=$(archive_of "$version")
  if [ ! -s "$archive" ]; then
    git -C "$tree" worktree remove --force "$source" >/dev/null 2>&1 || true
    git -C "$tree" worktree add --force --detach "$source" "$(revision_before)" >"$OUT/build-before.log" 2>&1 ||
      cannot "no tree of $(revision_before): $OUT/build-before.log"
    "$source/hack/build-image.sh" --version "$version" --archive "$archive" >>"$OUT/build-before.log" 2>&1 ||
      cannot "building the image of $(revision_before) failed: $OUT/build-before.log"
    git -C "$tree" worktree remove --force "$source" >/dev/null
  fi
  echo "$archive"
}

# import ARCHIVE
import() {
  local how=${IMPORT:-} context
  context=$(kube config current-context 2>/dev/null) || context=''
  if [ -z "$how" ]; then
    case $context in
      kind-*) how="kind load image-archive --name ${context#kind-}" ;;
      minikube) how='minikube image load' ;;
      *) cannot "set IMPORT to the command that brings an archive of an image to the nodes; this script's first lines have one" ;;
    esac
  fi
  # shellcheck disable=SC2086 # several words
  $how "$1" >"$OUT/import.log" 2>&1 || cannot "'$how $1' failed: $OUT/import.log"
}

# sidecar NAME: its archive; of several versions the one that the manifests name, else the newest.
sidecar() {
  local wanted there
  wanted=$("$tree/hack/build-sidecars.sh" --list | sed -n "s#.*/$1:##p")
  there=$SIDECARS/$1-$wanted.tar
  [ -s "$there" ] || there=$(find "$SIDECARS" -maxdepth 1 -name "$1-v*.tar" | sort -V | tail -n 1)
  echo "$there"
}

# The sidecars that the manifests to be applied ask for.
sidecar_names() { sed -n 's#^ *image: registry\.k8s\.io/sig-storage/\([a-z-]*\):.*#\1#p' "$@" | sort -u; }

# client_images: those that are in no registry, as the applications name them.
client_images() {
  local each known
  known=$("$tree/hack/build-sidecars.sh" --list | grep -v /)
  for each in $(examples 2>/dev/null); do
    steps_of "$each" | xargs sed -n 's#^ *image: ##p' | grep -Fx "$known" || true
  done | sort -u
}

# sidecars_are_there: imports those of the manifests, and leaves their names in $OUT/sidecars.
sidecars_are_there() {
  local each archive sources=()
  for each in ${SIDECAR_SOURCE:-}; do sources+=(--source "$each"); done
  : >"$OUT/sidecars"
  [ "$SIDECARS" != registry ] || return 0
  for each in $(sidecar_names <(manifests)); do
    [ -n "$(sidecar "$each")" ] || "$tree/hack/build-sidecars.sh" --out "$SIDECARS" "${sources[@]}" "$each" >>"$OUT/build-sidecars.log" 2>&1 ||
      cannot "building $each failed: $OUT/build-sidecars.log"
    archive=$(sidecar "$each")
    import "$archive"
    name_in "$archive" >>"$OUT/sidecars"
  done
}

# record_images NOW [BEFORE]: what is to be installed, in $OUT/images.json.
record_images() {
  jq -Rn --arg now "$1" --arg before "${2:-}" '{$now, $before, sidecars: [inputs]}' <"$OUT/sidecars" >"$OUT/images.json"
}

# Brings the images to the nodes, and records their names: {"now", "before", "sidecars"}.
images_are_there() {
  local now before each archive clients=() built_here=$SIDECARS sources=()
  for each in ${SIDECAR_SOURCE:-}; do sources+=(--source "$each"); done
  [ "$SIDECARS" != registry ] || built_here=$tree/out/sidecars
  mkdir -p "$OUT/images"
  now=${IMAGE:-$(build_here)}
  before=${IMAGE_BEFORE:-$(build_before)}
  [ "$(name_in "$now")" != "$(name_in "$before")" ] || cannot "both images are $(name_in "$now"): an upgrade has to change it; set UPGRADE_FROM or IMAGE_BEFORE"
  import "$now"
  import "$before"
  sidecars_are_there
  for each in $(! wants examples || client_images); do
    archive=$built_here/${each/:/-}.tar
    [ -s "$archive" ] || "$tree/hack/build-sidecars.sh" --out "$built_here" "${sources[@]}" "${each%:*}" >>"$OUT/build-sidecars.log" 2>&1 ||
      cannot "building ${each%:*} failed: $OUT/build-sidecars.log"
    import "$archive"
    clients+=("$each")
  done
  record_images "$(name_in "$now")" "$(name_in "$before")"
  proved "the image of this tree is built and on the nodes as $(image now), the one to upgrade from as $(image before)"
  [ ! -s "$OUT/sidecars" ] || proved "so are $(sed 's,.*/,,' "$OUT/sidecars" | xargs)"
  ((${#clients[@]} == 0)) || proved "so are ${clients[*]}, for the applications"
}

# image now|before: the name as it is in its archive.
image() { jq -er ".$1" "$OUT/images.json" || cannot "no images are known: run the step images first"; }

# shellcheck shell=bash
# What the scripts that build images have in common. Sourced, with `name` set to
# how the script calls itself in messages and `builder` to docker, podman,
# buildah or nothing; choose_builder sets it to the one that is used.

# shellcheck disable=SC2154 # name is the sourcing script's
say() { echo "$name: $*" >&2; }

# Exit code 2: something that is needed is missing.
cannot() {
	say "$*"
	exit 2
}

# install PROGRAM:PACKAGE...: as root on Debian or Ubuntu; elsewhere says what is missing.
install() {
	local pair packages=()
	for pair in "$@"; do command -v "${pair%%:*}" >/dev/null || packages+=("${pair#*:}"); done
	((${#packages[@]})) || return 0
	if [[ $(id -u) -ne 0 ]] || ! command -v apt-get >/dev/null; then
		cannot "missing: ${packages[*]} (Debian names); install them, for example: sudo apt-get install ${packages[*]}"
	fi

	say "installing ${packages[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null 2>&1 || {
		# Lists may be absent (a fresh container) or old.
		apt-get update -qq >&2 || true
		apt-get install -y -qq --no-install-recommends "${packages[@]}" >&2
	} || cannot "apt-get could not install ${packages[*]}"
}

# The first of docker, podman and buildah that works here, else buildah, installed.
choose_builder() {
	local each
	for each in ${builder:-docker podman buildah}; do
		if command -v "$each" >/dev/null && "$each" info >/dev/null 2>&1; then
			builder=$each
			tame_buildah
			return
		fi
	done
	[[ -z $builder || $builder == buildah ]] || cannot "$builder does not answer \`$builder info\`: is it there, and its engine running?"

	builder=buildah
	install buildah:buildah
	tame_buildah
}

# Where a container may neither mount an overlay nor make namespaces, buildah
# still can copy files and chroot.
tame_buildah() {
	local container
	[[ $builder == buildah ]] || return 0
	export BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot}
	[[ -z ${STORAGE_DRIVER:-} ]] || return 0
	if container=$(buildah from scratch 2>/dev/null); then
		if buildah mount "$container" >/dev/null 2>&1; then
			buildah rm "$container" >/dev/null
			return
		fi
		buildah rm "$container" >/dev/null 2>&1 || true
	fi
	say "buildah's storage can't be mounted here: using its driver vfs"
	export STORAGE_DRIVER=vfs
}

# write_archive IMAGE FILE [NAME]: what `docker load`, `podman load` and `ctr --namespace
# k8s.io images import` take. The name in it is whole, as the kubelet looks for
# it: podman and buildah call theirs localhost/NAME.
write_archive() {
	local image=$1 whole=${3:-$1}
	mkdir -p "$(dirname "$2")"
	rm -f "$2"
	if [[ $builder == docker ]]; then
		[[ $whole == "$image" ]] || docker tag "$image" "$whole"
		docker save -o "$2" "$whole"
		return
	fi
	case $whole in */*) ;; *) whole=docker.io/library/$whole ;; esac
	"$builder" push -q "$image" "docker-archive:$2:$whole"
}

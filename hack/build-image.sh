#!/usr/bin/env bash
# Builds the container image with docker, podman or buildah, whichever is here.
#
#   hack/build-image.sh [--image NAME] [--version V] [--builder docker|podman|buildah] [--local] [--hostpath [--program FILE]] [--archive FILE [--as NAME]]
#
# The image gets the tags NAME:V and NAME:latest (touchstone, and what git says).
# --archive also writes it, as NAME:V, into a file that `docker load`, `podman
# load` and `ctr --namespace k8s.io images import` take; --as gives it another name there.
#
# --hostpath builds the image hostpathplugin on it (deploy/hostpath/Dockerfile), which
# is the one that is archived; --program puts another program of that name into it.
#
# Where the Dockerfile's base images can't be pulled, or with --local, they are
# made here: mmdebstrap makes a Debian of nothing but packages, go builds the
# binary, and what the Dockerfile does to them afterwards is done to these.
#
# Exit code: 0 built, 1 a step failed, 2 something that is needed is missing.
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin:/usr/local/go/bin
cd "$(dirname "$0")/.."

image=touchstone
version=$(git describe --tags --always --dirty 2>/dev/null || echo latest)
builder=
archive=
as=
only_local=
hostpath=
program=
work=$PWD/out/image

name=build-image
# shellcheck source=hack/builder.sh
. hack/builder.sh

while (($#)); do
	case $1 in
	--image) image=${2:?--image needs a name} && shift ;;
	--version) version=${2:?--version needs a tag} && shift ;;
	--builder) builder=${2:?--builder needs docker, podman or buildah} && shift ;;
	--archive) archive=$(realpath -m "${2:?--archive needs a file}") && shift ;;
	--as) as=${2:?--as needs a name} && shift ;;
	--local) only_local=yes ;;
	--hostpath) hostpath=yes ;;
	--program) program=$(realpath "${2:?--program needs a file}") && shift ;;
	-h | --help)
		sed -n '2,18s/^# \{0,1\}//p' "$0"
		exit 0
		;;
	*) cannot "unknown argument $1" ;;
	esac
	shift
done

# can_pull: whether all images that the Dockerfile begins with are here, or come.
can_pull() {
	local base
	while read -r base; do
		if [[ $builder == docker ]]; then docker image inspect "$base" >/dev/null 2>&1 && continue; fi
		timeout 600 "$builder" pull -q "$base" >/dev/null 2>"$work/pull.log" && continue
		say "can't pull $base: $(tail -n 1 "$work/pull.log")"
		return 1
	done < <(awk '$1 == "FROM" && $2 != "scratch" { print $2 }' Dockerfile)
}

# build CONTEXT FILE. The Dockerfile has cache mounts, for which docker before 23
# needs DOCKER_BUILDKIT to use BuildKit.
build() {
	DOCKER_BUILDKIT=1 "$builder" build -t "$image:$version" -t "$image:latest" --build-arg VERSION="$version" \
		--build-arg COMMIT="$(git rev-parse HEAD 2>/dev/null)" -f "$2" "$1" >&2
}

# Debian as this machine gets it, if it is Debian; else from Debian's own mirrors.
# Prints what mmdebstrap takes for a mirror.
sources() {
	local file
	grep -qs '^ID=debian$' /etc/os-release || return 0
	for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
		if grep -qs '^deb \|^URIs:' "$file"; then echo "$file"; fi
	done
}

# make_base TAR: the Dockerfile's second FROM and the packages that it installs there.
make_base() {
	local suite packages mirrors cached
	install mmdebstrap:mmdebstrap
	# Ubuntu does not know Debian's keys by itself.
	[[ -e /usr/share/keyrings/debian-archive-keyring.gpg ]] || install debian-archive-keyring:debian-archive-keyring
	suite=$(sed -n 's/^FROM .*debian:\([a-z]*\)-slim$/\1/p' Dockerfile)
	packages=$(sed -n 's/.*--no-install-recommends \([a-z0-9 -]*[a-z0-9]\).*/\1/p' Dockerfile)
	[[ -n $suite && -n $packages ]] || cannot "can't read the suite and the packages from the Dockerfile: has it changed?"
	# This machine's sources are of its own release.
	! grep -qs "^VERSION_CODENAME=$suite\$" /etc/os-release || mapfile -t mirrors < <(sources)

	# It takes minutes, so one is used for a week.
	cached=$work/base-$(sha256sum <<<"$suite $packages $(date +%G-%V)" | cut -c1-16).tar
	if [[ -s $cached ]]; then
		say "using $cached"
		cp "$cached" "$1"
		return
	fi
	say "making a Debian $suite with $packages"
	mmdebstrap --quiet --variant=essential --include="passwd $packages" \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
		"$suite" "$work/making.tar" "${mirrors[@]}" >&2
	rm -f "$work"/base-*.tar
	mv "$work/making.tar" "$cached"
	cp "$cached" "$1"
}

# The Dockerfile's last stage without its first RUN, which is make_base's work.
local_dockerfile() {
	echo 'FROM scratch'
	echo 'ADD base.tar /'
	sed -e '1,/^FROM .*-slim/d' Dockerfile | awk '
		/^RUN/ && !skipped { skipping = 1 }
		!skipping { sub(/--from=builder \//, ""); print }
		skipping && !/\\$/ { skipping = 0; skipped = 1 }'
}

build_locally() {
	command -v go >/dev/null || cannot "go is missing: install it from https://go.dev/dl/"
	rm -rf "$work/context" && mkdir -p "$work/context"
	make_base "$work/context/base.tar"
	say "building the binary"
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$version" -o "$work/context/touchstone" ./cmd/touchstone
	local_dockerfile >"$work/context/Dockerfile"
	build "$work/context" "$work/context/Dockerfile"
	rm -rf "$work/context"
}

# put_program: the image again, with $program in it.
put_program() {
	cp "$program" "$work/context/hostpathplugin"
	printf 'FROM %s\nRUN rm /hostpathplugin\nCOPY hostpathplugin /\n' "$image:$version" >"$work/context/Dockerfile"
	image=$image-other
	build "$work/context" "$work/context/Dockerfile"
}

main() {
	local started=$SECONDS
	mkdir -p "$work"
	choose_builder
	if [[ -z $only_local ]] && can_pull; then
		build . Dockerfile
	else
		build_locally
	fi
	if [[ $hostpath ]]; then
		mkdir -p "$work/context"
		DOCKER_BUILDKIT=1 "$builder" build -t "hostpathplugin:$version" -t hostpathplugin:latest --build-arg BASE="$image:$version" \
			-f deploy/hostpath/Dockerfile "$work/context" >&2
		image=hostpathplugin
		[[ -z $program ]] || put_program
	fi
	[[ -z $archive ]] || write_archive "$image:$version" "$archive" "$as"
	say "$image:$version is built with $builder in $((SECONDS - started)) s${archive:+, and in $archive}"
}

main

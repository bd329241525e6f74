#!/usr/bin/env bash
# Builds what a release has, into out/dist, without any registry:
#
#   hack/dist.sh [--version V] [--registry R] [--arch "amd64 arm64"] [--without-images]
#   hack/dist.sh [--version V] --notes
#
# touchstone_V_linux_ARCH.tar.gz   the static binary, manual pages, completions, unit
# touchstone_V_ARCH.deb, .rpm      packages
# touchstone-V.image.oci.tar       the image for all architectures, as an OCI archive
# hostpathplugin-V.image.oci.tar   the same under that name (docs/hostpath.md)
# touchstone-V.tgz, .chart.oci.tar the chart, as helm packages it and as an OCI archive; it installs
#                                  R/touchstone:V, without --registry touchstone:V
# touchstone-V.cdx.json            what is in the binary (SBOM, CycloneDX)
# touchstone-V.notes.md            the version's section of CHANGELOG.md, which --notes prints
# SHA256SUMS                       the checksums of all of them
#
# A version MAJOR.MINOR.PATCH has to have a section in CHANGELOG.md.
#
# The images' Debian comes from packages (mmdebstrap), extracted and not configured, so that an
# architecture needs no emulation.
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin:/usr/local/go/bin
cd "$(dirname "$0")/.."

# tool NAME ARGUMENT...: one of the tools in hack/dist/go.mod.
tool() { go tool -modfile=hack/dist/go.mod "$@"; }

name=dist
# shellcheck source=hack/builder.sh
. hack/builder.sh

version=$(git describe --tags --always --dirty 2>/dev/null || echo v0.0.0)
architectures="amd64 arm64"
registry=
images=yes
only_packages=
only_notes=

while (($#)); do
	case $1 in
	--version) version=${2:?--version needs a version} && shift ;;
	--registry) registry=${2:?--registry needs a name, such as ghcr.io/OWNER}/ && shift ;;
	--notes) only_notes=yes ;;
	--arch) architectures=${2:?--arch needs architectures} && shift ;;
	--without-images) images= ;;
	--only-packages) only_packages=yes ;;
	-h | --help)
		sed -n '2,22s/^# \{0,1\}//p' "$0"
		exit 0
		;;
	*) cannot "unknown argument $1" ;;
	esac
	shift
done

# Packages and charts need a semantic version: a commit without a tag is one before the first.
number=${version#v}
[[ $number =~ ^[0-9]+\.[0-9]+\.[0-9]+ ]] || number=0.0.0-$number
out=$PWD/out/dist
work=$PWD/out/dist-work
commit=$(git rev-parse HEAD 2>/dev/null || echo unknown)
created=$(git log -1 --format=%ct 2>/dev/null || echo 0)

binary() { echo "$work/$1/touchstone"; }

# notes: the version's section of CHANGELOG.md, whose links work elsewhere, too. A commit without a
# version has what is not released yet.
notes() {
	local section=$number
	[[ $number =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || section=Unreleased
	grep -q "^## $section\( \|$\)" CHANGELOG.md || cannot "CHANGELOG.md has no section $section: docs/release.md"
	awk -v section="$section" '/^## / { on = $2 == section; next } on' CHANGELOG.md |
		sed "s,](\([^):]*)\),](https://github.com/touchstone-csi/touchstone/blob/$version/\1,g"
}

build_binaries() {
	local arch
	for arch in $architectures; do
		say "binary for $arch"
		CGO_ENABLED=0 GOOS=linux GOARCH=$arch go build -trimpath -ldflags "-s -w -X main.version=$version" \
			-o "$(binary "$arch")" ./cmd/touchstone
	done
	# Pages and completions come from a binary of this machine.
	go build -ldflags "-X main.version=$version" -o "$work/touchstone" ./cmd/touchstone
	"$work/touchstone" man "$work/man"
	gzip -9nf "$work"/man/*.1
	mkdir -p "$work/completions"
	local shell
	for shell in bash zsh fish; do "$work/touchstone" completion "$shell" >"$work/completions/touchstone.$shell"; done
}

build_archives() {
	local arch tree
	for arch in $architectures; do
		tree=$work/$arch/touchstone_${number}_linux_$arch
		mkdir -p "$tree"
		cp -r "$(binary "$arch")" "$work/man" "$work/completions" deploy/systemd LICENSE README.md CHANGELOG.md "$tree"
		tar --sort=name --owner=0 --group=0 --mtime="@$created" -C "$work/$arch" -c "$(basename "$tree")" |
			gzip -9n >"$out/$(basename "$tree").tar.gz"
	done
}

build_packages() {
	local arch kind
	for arch in $architectures; do
		for kind in deb rpm; do
			say "$kind for $arch"
			VERSION=$number ARCH=$arch BINARY=$(binary "$arch") MAN=$work/man COMPLETIONS=$work/completions \
				tool nfpm package --config deploy/packages/nfpm.yaml --packager "$kind" --target "$out/" >/dev/null
		done
	done
}

# make_base ARCH FILE: the Dockerfile's second FROM and the packages that it installs there, as
# files. mmdebstrap's variant extract runs none of them.
make_base() {
	local suite packages
	suite=$(sed -n 's/^FROM .*debian:\([a-z]*\)-slim.*$/\1/p' Dockerfile)
	packages=$(sed -n 's/.*--no-install-recommends \([a-z0-9 -]*[a-z0-9]\).*/\1/p' Dockerfile)
	[[ -n $suite && -n $packages ]] || cannot "can't read the suite and the packages from the Dockerfile: has it changed?"
	mmdebstrap --quiet --mode=root --variant=extract --architectures="$1" \
		--include="base-files base-passwd coreutils dash libc-bin mount util-linux $packages" \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
		"$suite" "$2" >&2
}

build_image() {
	local arch platforms=()
	install mmdebstrap:mmdebstrap
	for arch in $architectures; do
		say "image for $arch"
		SOURCE_DATE_EPOCH=$created make_base "$arch" "$work/$arch/base.tar"
		platforms+=("$arch=$work/$arch/base.tar,$(binary "$arch")")
	done
	"$work/dist" image -version "$version" -revision "$commit" -created "$created" \
		-out "$out/touchstone-$number.image.oci.tar" "${platforms[@]}" >/dev/null
	"$work/dist" image -hostpath -version "$version" -revision "$commit" -created "$created" \
		-out "$out/hostpathplugin-$number.image.oci.tar" "${platforms[@]}" >/dev/null
}

build_chart() {
	say "chart"
	(cd hack/dist && go build -o "$work/dist" .)
	"$work/dist" chart -version "$number" -app-version "$version" -repository "${registry}touchstone" -out "$out" \
		deploy/helm/touchstone CHANGELOG.md LICENSE >/dev/null
}

if [[ $only_notes ]]; then
	notes
	exit
fi
rm -rf "$out" "$work" && mkdir -p "$out" "$work"
[[ $only_packages ]] || notes >"$out/touchstone-$number.notes.md"
build_binaries
build_packages
if [[ -z $only_packages ]]; then
	build_archives
	build_chart
	say "SBOM"
	tool cyclonedx-gomod bin -json -licenses -version "$version" -output "$out/touchstone-$number.cdx.json" "$(binary "${architectures%% *}")" >&2
	[[ -z $images ]] || build_image
fi
(cd "$out" && sha256sum -- * >SHA256SUMS)
say "out/dist has $(find "$out" -type f | wc -l) files"

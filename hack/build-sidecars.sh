#!/usr/bin/env bash
# Builds the images of the sidecars that the manifests name, from their Go
# modules, for clusters that reach no registry. Each is the binary and nothing
# else, has the name under which the manifests ask for it, and is written as an
# archive for `ctr --namespace k8s.io images import` or `docker load`.
#
# snapshot-metadata-lister is upstream's client of csi-snapshot-metadata, of which
# no registry has an image: it is built from upstream's repository, and has a
# shell (busybox) beside it, for examples/changed-blocks.
#
#   hack/build-sidecars.sh [--out DIR] [--builder docker|podman|buildah] [--source NAME=DIR]... [NAME[@VERSION]...]
#   hack/build-sidecars.sh --list
#
# Without a NAME all are built. Archives go to out/sidecars/NAME-VERSION.tar; one
# that is there already is kept. --source builds from a checkout, where a module
# can't be downloaded. --list prints the images' names.
#
# Exit code: 0 built, 1 a step failed, 2 something that is needed is missing.
set -euo pipefail

PATH=$PATH:/usr/local/go/bin
cd "$(dirname "$0")/.."

# command module version, and the directory of the command where it is not cmd. The
# manifests have the same versions; a test sees to that.
sidecars='
csi-provisioner github.com/kubernetes-csi/external-provisioner/v6 v6.3.0
csi-attacher github.com/kubernetes-csi/external-attacher/v4 v4.13.0
csi-resizer github.com/kubernetes-csi/external-resizer/v2 v2.3.0
csi-snapshotter github.com/kubernetes-csi/external-snapshotter/v8 v8.7.0
snapshot-controller github.com/kubernetes-csi/external-snapshotter/v8 v8.7.0
csi-external-health-monitor-controller github.com/kubernetes-csi/external-health-monitor v0.18.0
csi-snapshot-metadata github.com/kubernetes-csi/external-snapshot-metadata v1.0.0
snapshot-metadata-lister github.com/kubernetes-csi/external-snapshot-metadata v1.0.0 tools
'
repository=registry.k8s.io/sig-storage

out=$PWD/out/sidecars
builder=
names=()
declare -A source=()

name=build-sidecars
# shellcheck source=hack/builder.sh
. hack/builder.sh

while (($#)); do
	case $1 in
	--out) out=$(realpath -m "${2:?--out needs a directory}") && shift ;;
	--builder) builder=${2:?--builder needs docker, podman or buildah} && shift ;;
	--source) [[ ${2:-} == *=* ]] || cannot "--source needs NAME=DIR" && source[${2%%=*}]=${2#*=} && shift ;;
	--list)
		awk -v r="$repository/" 'NF { print ($4 == "tools" ? "" : r) $1 ":" $3 }' <<<"$sidecars"
		exit 0
		;;
	-h | --help)
		sed -n '2,19s/^# \{0,1\}//p' "$0"
		exit 0
		;;
	-*) cannot "unknown argument $1" ;;
	*) names+=("$1") ;;
	esac
	shift
done

# fetch MODULE VERSION: prints where the module's files are.
fetch() {
	local answer
	answer=$(go mod download -json "$1@$2" | sed -n 's/^\t"\(Dir\|Error\)": "\(.*\)",\{0,1\}$/\1 \2/p') || true
	[[ $answer == Dir\ * ]] || { say "$1@$2: ${answer#Error }" && return 1; }
	echo "${answer#Dir }"
}

# clone REPOSITORY VERSION: the same of all that its tag has, which is more than its module.
clone() {
	local to
	to=$(mktemp -d "$out/.source.XXXXXX")
	git -c advice.detachedHead=false clone -q --depth 1 --branch "$2" "https://$1" "$to" >&2 || return 1
	echo "$to"
}

# compile COMMAND MODULE VERSION DIRECTORY BINARY
compile() {
	local from=${source[$1]:-} tree replaced mode=-mod=mod get=fetch
	[[ $4 == cmd ]] || get=clone
	[[ -n $from ]] || from=$("$get" "$2" "$3") || cannot "$1 can't be downloaded; give a checkout of $2 with --source $1=DIR"

	# A copy, since go.mod may have to change and the module cache may not.
	tree=$(mktemp -d "$out/.source.XXXXXX")
	cp -r "$from/." "$tree" && chmod -R u+w "$tree"
	# As a module of its own a tool would be built with an older version of what it lies in.
	[[ $4 == cmd ]] || rm -f "$tree/$4/$1"/go.*
	[[ ! -d $tree/vendor ]] || mode=-mod=vendor
	if [[ $mode == -mod=mod ]]; then
		# A module's archive lacks the nested modules that its repository has.
		while read -r replaced; do
			(cd "$tree" && go mod edit -dropreplace="$replaced" -require="$replaced@$3")
		done < <(sed -n 's#^\(replace\)\{0,1\}[[:space:]]*\([^ ]*\) => \./.*#\2#p' "$tree/go.mod")
	fi
	(cd "$tree" && CGO_ENABLED=0 GOFLAGS=-buildvcs=false GOWORK=off \
		go build $mode -trimpath -ldflags "-s -w -X main.version=$3" -o "$5" "./$4/$1") || { rm -rf "$tree" && return 1; }
	rm -rf "$tree"
}

# dockerfile COMMAND DIRECTORY CONTEXT: of an image with what is in the context.
dockerfile() {
	if [[ $2 == cmd ]]; then
		printf 'FROM scratch\nCOPY %s /%s\nENTRYPOINT ["/%s"]\n' "$1" "$1" "$1"
	elif timeout 60 "$builder" pull -q docker.io/library/busybox:1.37 >/dev/null 2>&1; then
		printf 'FROM docker.io/library/busybox:1.37\nCOPY %s /bin/%s\n' "$1" "$1"
	else
		install busybox:busybox-static
		cp "$(command -v busybox)" "$3/busybox"
		printf 'FROM scratch\nCOPY busybox %s /bin/\nRUN ["/bin/busybox", "--install", "-s", "/bin"]\n' "$1"
	fi
}

# build COMMAND MODULE VERSION DIRECTORY
build() {
	local image archive=$out/$1-$3.tar context started=$SECONDS
	image=$1:$3
	[[ $4 != cmd ]] || image=$repository/$image
	if [[ -s $archive ]]; then
		say "$archive is there"
		return
	fi
	say "building $1 $3"
	context=$(mktemp -d "$out/.context.XXXXXX")
	compile "$1" "$2" "$3" "$4" "$context/$1"
	dockerfile "$1" "$4" "$context" >"$context/Dockerfile"
	"$builder" build -q -t "$image" -f "$context/Dockerfile" "$context" >/dev/null
	write_archive "$image" "$archive.new" && mv "$archive.new" "$archive"
	rm -rf "$context"
	say "$image is in $archive after $((SECONDS - started)) s"
}

main() {
	local command module version directory wanted code missing=()
	command -v go >/dev/null || cannot "go is missing: install it from https://go.dev/dl/"
	((${#names[@]})) || mapfile -t names < <(awk 'NF { print $1 }' <<<"$sidecars")
	choose_builder
	mkdir -p "$out"
	rm -rf "$out"/.source.* "$out"/.context.*
	for wanted in "${names[@]}"; do
		read -r command module version directory < <(grep "^${wanted%@*} " <<<"$sidecars") ||
			cannot "no sidecar is called ${wanted%@*}; there are $(awk 'NF { print $1 }' <<<"$sidecars" | xargs)"
		[[ $wanted != *@* ]] || version=${wanted#*@}
		# One that can't be built here does not prevent the others.
		set +e
		(set -e && build "$command" "$module" "$version" "${directory:-cmd}")
		code=$?
		set -e
		((code == 0 || code == 2)) || exit "$code"
		((code == 0)) || missing+=("$command")
	done
	rm -rf "$out"/.source.* "$out"/.context.*
	((${#missing[@]} == 0)) || cannot "not built: ${missing[*]}"
}

main

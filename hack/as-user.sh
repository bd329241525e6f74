#!/usr/bin/env bash
# Runs a test binary of `go test -exec hack/as-user.sh` as an ordinary user without any capability, in a
# mount namespace in which that user can read the source and Go's modules wherever they are. That user's
# cache of builds stays in out/user-cache: -trimpath has it not depend on the temporary directory. git
# refuses another user's repository, so that builds have no version of it. A driver that TOUCHSTONE_BINARY
# names is below the source.
set -euo pipefail

if [[ ${1-} == --inside ]]; then
	directory=$2 relative=$3 modules=$4
	shift 4
	mount --bind out/user-cache "$directory/.cache"
	mount --bind -o ro "$PWD" "$directory/source"
	mount --bind -o ro "$modules" "$directory/go/pkg/mod"
	cd "$directory/source/$relative"
	exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all -- "$@"
fi

root=$(dirname "$(dirname "$(realpath "$0")")")
directory=$(mktemp -d)
trap 'rm -rf --one-file-system "$directory"' EXIT
# The go command's own directory is for its user only.
cp "$1" "$directory/program"
chmod 0755 "$directory" "$directory/program"
mkdir -p "$directory/source" "$directory/.cache" "$directory/go/pkg/mod" "$root/out/user-cache"
chown 65534:65534 "$directory" "$root/out/user-cache"
relative=$(realpath --relative-to="$root" "$PWD") modules=$(go env GOMODCACHE)
shift
cd "$root"
if [[ -n ${TOUCHSTONE_BINARY-} ]]; then
	TOUCHSTONE_BINARY=$directory/source/$(realpath --relative-to="$root" "$TOUCHSTONE_BINARY")
fi
HOME=$directory GOPATH=$directory/go GOFLAGS="$(go env GOFLAGS) -trimpath -buildvcs=false" unshare --mount -- \
	"$root/hack/as-user.sh" --inside "$directory" "$relative" "$modules" "$directory/program" "$@"

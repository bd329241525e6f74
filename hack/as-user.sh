#!/usr/bin/env bash
# Runs a test binary of `go test -exec hack/as-user.sh` as an ordinary user, without any capability.
set -euo pipefail

# The go command's own directory is for its user only.
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cp "$1" "$directory/"
chmod 0755 "$directory" "$directory/${1##*/}"
program=$directory/${1##*/}
shift
HOME=$directory setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all -- "$program" "$@"

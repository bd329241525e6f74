#!/bin/sh
# A test of a CO in shell: the response of CreateVolume is lost, and the CO must end up with one volume.
# It needs touchstone in the PATH and no root. $1 is the command that is tested; it gets the driver's
# endpoint in CSI_ENDPOINT and the volume's name as its argument.
set -eu

co=${1:?usage: lost-response.sh COMMAND}
dir=$(mktemp -d)
export CSI_ENDPOINT="unix://$dir/csi.sock"

touchstone serve --simulate-node --state-dir "$dir/state" --pool "default=$dir/pool" --kubelet-dir "$dir" \
	--enable-faults --call-log ring --strict 2>"$dir/log" &
driver=$!
trap 'kill "$driver"; wait "$driver" || :; rm -r "$dir"' EXIT

touchstone ctl capabilities --wait 10s >"$dir/capabilities" || { cat "$dir/log"; exit 1; }
touchstone ctl fault add '{match: {method: CreateVolume, calls: 1}, act: {lose: reset}}'

"$co" data || "$co" data # a CO that gives up is called again, as the kubelet's sidecars are

touchstone ctl calls wait --method CreateVolume --count 2 --timeout 30s
[ "$(touchstone ctl volume list -o name | wc -l)" -eq 1 ] || { echo "not one volume"; exit 1; }
touchstone ctl violations
echo passed

# shellcheck shell=bash
block 1 &
export TOUCHSTONE_ENDPOINT=unix:///csi/csi.sock
touchstone ctl capabilities --wait 10s | grep hostpath.csi.k8s.io
touchstone ctl volume create data --size 64Mi
find /csi-data-dir/hostpath.csi.k8s.io -name state.jsonl | grep state

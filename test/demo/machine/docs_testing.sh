# shellcheck shell=bash
# The suite asks for volumes of 10 GiB, and compares the topology of snapshots wrongly: see the page.
service 'overcommit: 100' 'disable-capability: [SNAPSHOT_ACCESSIBILITY_CONSTRAINTS]'
block 1 >/run/output || { tail -n 60 /run/output >&2 && exit 1; }
grep -E 'Ran [1-9][0-9]+ of' /run/output
grep -F 'SUCCESS!' /run/output

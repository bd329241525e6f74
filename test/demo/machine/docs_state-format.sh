# shellcheck shell=bash
service
touchstone ctl volume create data --size 64Mi
block 1 | jq -e 'map(.name) == ["data"]'
fails "" touchstone ctl capabilities

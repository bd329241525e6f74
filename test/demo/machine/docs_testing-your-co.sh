# shellcheck shell=bash
# What the modules of this tree are when they are published: a module of a reader gets them, from files.
mkdir -p /run/modules/upper /run/modules/work /srv/co
mount -t overlay modules -o "lowerdir=$GOMODCACHE,upperdir=/run/modules/upper,workdir=/run/modules/work" "$GOMODCACHE"
export GOPROXY=file:///disk/proxy,file://$GOMODCACHE/cache/download GOSUMDB=off GOBIN=/srv/co/bin
cd /srv/co
go mod init example.org/co
block 1
(($(go list -m all | wc -l) <= 25))
grep -F 'touchstone-csi/touchstone/pkg/touchstonetest v0.9.0-x' go.mod
bin/touchstone version | grep -F v0.9.0-x

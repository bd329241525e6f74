# shellcheck shell=bash
version=v0.9.0
export GOPROXY=file:///run/proxy,file://$GOMODCACHE/cache/download GOSUMDB=off GOMODCACHE=/disk/modules GOPATH=/disk/go

# publish MODULE DIRECTORY: the module as a proxy has it, without those beneath it.
publish() {
  local at=/run/proxy/$1/@v nested
  mapfile -t nested < <(git -C "$2" ls-files '*/go.mod' | sed 's,/go.mod$,,; s,^,:!,')
  mkdir -p "$at"
  echo $version >"$at/list"
  printf '{"Version":"%s"}' $version >"$at/$version.info"
  cp "$2/go.mod" "$at/$version.mod"
  (cd "$2" && git archive --prefix="$1@$version/" -o "$at/$version.zip" HEAD . "${nested[@]}")
}

publish github.com/touchstone-csi/touchstone .
publish github.com/touchstone-csi/touchstone/pkg/touchstonetest pkg/touchstonetest
mkdir /disk/co
cd /disk/co || exit
go mod init example.org/co
block 1
test "$(go list -m -f '{{if not .Main}}{{.Path}}{{end}}' all | wc -l)" -le 25
/disk/go/bin/touchstone version

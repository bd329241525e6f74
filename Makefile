# Touchstone's targets. `make` alone lists those of ##, `make help-all` also those of ###.

GO            ?= go
# What runs tests: go test, or in CI test/rerun, which repeats what failed.
GOTEST        ?= $(GO) test
# What runs the tests of test/vm, in CI through test/rerun, too.
TESTVM        ?= hack/test-vm.sh
GOLANGCI_LINT_VERSION := v2.15.0
GOFUMPT_VERSION       := v0.12.0
ACTIONLINT_VERSION    := v1.7.12
IMAGE         ?= touchstone
OUT           ?= out
TEST_TIMEOUT  ?= 30m
# How many packages are tested at once: one more than there are CPUs, as many tests wait.
TEST_PACKAGES ?= $(shell expr $$(nproc) + 1)
FUZZTIME      ?= 30s
SOAK          ?= 1h
# All builds have the same settings, so that what several of them need is compiled once.
export GOFLAGS     += -trimpath
export CGO_ENABLED := 0
# Tests run with the race detector wherever a C compiler makes that possible.
RACE          := $(shell command -v $${CC:-gcc} >/dev/null 2>&1 && echo -race)
RACETEST      := $(if $(RACE),CGO_ENABLED=1 $(GOTEST) $(RACE),$(GOTEST))
# go vet has run, and what only debuggers read need not be linked, once for each package.
TESTFLAGS     := -vet=off -ldflags=-s
VERSION       := $(shell git describe --tags --always --dirty 2>/dev/null)
LDFLAGS       := -s -w $(if $(VERSION),-X main.version=$(VERSION))
# mkfs and fsck live where an unprivileged PATH does not look.
export PATH   := $(PATH):/usr/sbin:/sbin:/usr/local/go/bin
# Otherwise the race detector has each process that a test starts wait for a second before it ends.
export GORACE ?= atexit_sleep_ms=0

.DEFAULT_GOAL := help
.PHONY: help help-all build demo demo-recording run test test-user test-mutation test-manifests manifests test-page test-alerts sanity bench bench-compare soak test-crash test-power test-faults test-vm e2e e2e-install e2e-health e2e-faults e2e-burst e2e-upstream e2e-hostpath-deploy fuzz lint image image-hostpath sidecars install uninstall packages dist clean

help: ## List the targets that people use
	@awk -F ':.*[^#]## ' '/^[a-z0-9-]+:.*[^#]## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

help-all: ## List all targets
	@awk -F ':.*###? ' '/^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build bin/touchstone, a static binary
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/touchstone ./cmd/touchstone

demo: ## Show the lifecycle of volumes on this machine (root; installs missing tools)
	@hack/ensure-tools.sh --for demo
	@$(MAKE) --no-print-directory build
	bin/touchstone demo

demo-recording: build ### Record what the demo prints, in docs/demo.txt
	@hack/ensure-tools.sh --for demo
	cd / && $(abspath bin/touchstone) demo > $(abspath docs/demo.txt)

run: build ## Serve all services on out/csi.sock, with state and pool in out/
	@mkdir -p $(OUT)/pool
	bin/touchstone serve --endpoint unix://$(abspath $(OUT))/csi.sock --state-dir $(abspath $(OUT))/state \
		--pool default=$(abspath $(OUT))/pool --kubelet-dir $(abspath $(OUT)) --http-endpoint 127.0.0.1:9808

test: ## Run every test, with -race and real devices (root; installs missing tools)
	@hack/ensure-tools.sh --for test
	@# A test runs `make packages` where there is no network.
	@$(GO) tool -modfile=hack/dist/go.mod nfpm --version >/dev/null
	$(GO) vet ./...
	$(RACETEST) $(TESTFLAGS) -p=$(TEST_PACKAGES) -timeout=$(TEST_TIMEOUT) ./...
	cd test/rerun && $(GO) vet ./... && $(GOTEST) $(TESTFLAGS) -timeout=$(TEST_TIMEOUT) ./...
	cd pkg/touchstonetest && $(GO) vet ./... && $(RACETEST) $(TESTFLAGS) -timeout=$(TEST_TIMEOUT) ./...
	@$(MAKE) --no-print-directory test-manifests

# That user would compile the drivers once more. `test` has looked for races in the same tests.
test-user: build ## Run the tests that need no root, as an ordinary user, and count what is left out
	$(GO) build -tags=nolab -o bin/touchstone-nolab ./cmd/touchstone
	cd test/rerun && $(GO) build -o $(abspath $(OUT))/rerun .
	TOUCHSTONE_BINARY=$(abspath bin/touchstone) $(OUT)/rerun -skips=test/skips.tsv -environment=user $(TESTFLAGS) -p=$(TEST_PACKAGES) -timeout=$(TEST_TIMEOUT) \
		$(if $(filter 0,$(shell id -u)),-exec=$(abspath hack/as-user.sh)) ./...
	cd pkg/touchstonetest && TOUCHSTONE_BINARY=$(abspath bin/touchstone) $(GO) test -short $(TESTFLAGS) -timeout=$(TEST_TIMEOUT) \
		$(if $(filter 0,$(shell id -u)),-exec=$(abspath hack/as-user.sh)) ./...

# A module of its own, whose go.mod follows the driver's: hence -mod=mod. What it
# reads is outside of it, where go does not look for changes: hence -count=1. Without go vet, which would
# analyse all of Helm once more: go test has most of its checks, and `make lint` all.
test-manifests: ### Test that chart and plain manifests agree, and are what Kubernetes takes
	cd test/manifests && $(GOTEST) -mod=mod -count=1 -timeout=$(TEST_TIMEOUT) ./...

# MUTATIONFLAGS='-seed 2 -n 50 -run ^pkg/state' draws another sample, '-regressions -run ^state/' tries some regressions.
test-mutation: ### Apply deliberate defects one by one and report those that no test catches
	@hack/ensure-tools.sh --for test
	$(GO) run ./test/mutation $(if $(MUTATIONFLAGS),$(MUTATIONFLAGS),&& $(GO) run ./test/mutation -regressions)

manifests: ### Render deploy/kustomize/base from the chart in deploy/helm
	cd test/manifests && $(GO) run -mod=mod ./render

test-page: ### Test the status page in a real browser; pictures go to out/status-page (installs chromium)
	@hack/ensure-tools.sh --for page
	TOUCHSTONE_SCREENSHOTS=$(abspath $(OUT))/status-page $(GO) test -tags chromium -count=1 -v ./internal/driver/statuspage

test-alerts: ### Have Prometheus check and test deploy/monitoring/alerts.yaml (installs prometheus)
	@hack/ensure-tools.sh --for alerts
	$(GO) test -tags promtool -count=1 -v -run Prometheus ./test/monitoring

sanity: ## Run csi-sanity against real volumes only
	@hack/ensure-tools.sh --for test
	$(RACETEST) -timeout $(TEST_TIMEOUT) -count=1 -v ./test/sanity/...

bench: build ## Measure the driver: latencies, rates, memory of docs/performance.md
	@hack/ensure-tools.sh --for bench
	$(GO) run ./test/bench -binary bin/touchstone -out $(OUT)/bench.json $(BENCHFLAGS)

bench-compare: ### Measure the drivers OLD and NEW in turn (BENCHFLAGS='-only life'), and print the ratios with their spread
	@hack/ensure-tools.sh --for bench
	$(GO) run ./test/bench -compare $(OLD) -binary $(NEW) -out $(OUT)/bench.json $(BENCHFLAGS)

soak: build ### Let volumes come and go for SOAK (1h), and list each condition: all are false
	@hack/ensure-tools.sh --for test
	$(GO) run ./test/soak -binary bin/touchstone -duration $(SOAK) $(SOAKFLAGS)

test-crash: ### Kill the driver 200 times under load and look for what is lost or leaked
	@hack/ensure-tools.sh --for test
	TOUCHSTONE_CRASH_KILLS=$${TOUCHSTONE_CRASH_KILLS:-200} $(GO) test -timeout 60m -count=1 -v ./test/crash/...

test-power: ### Start the driver after 300 power failures, on ext4, xfs and btrfs, and look for what is lost or leaked
	@hack/ensure-tools.sh --for test
	TOUCHSTONE_POWER_POINTS=$${TOUCHSTONE_POWER_POINTS:-300} $(GO) test -timeout 4h -count=1 -v -run PowerFailure ./test/crash

test-faults: ### Fail 1500 system calls of the driver, one in each lifecycle (TOUCHSTONE_INJECTIONS=-1: all)
	@hack/ensure-tools.sh --for test
	TOUCHSTONE_INJECTIONS=$${TOUCHSTONE_INJECTIONS:-1500} $(GO) test -timeout 12h -count=1 -v ./test/syscallfault

test-vm: ## Run in qemu, on Debian's kernel, what this kernel can not do
	@hack/ensure-tools.sh --for vm
	$(TESTVM)

e2e: ## Run Kubernetes' suite for external storage on a cluster (KUBECONFIG, E2E_TEST: test/e2e/run.sh)
	test/e2e/run.sh

e2e-install: ### Install on a cluster to play with, use, kill, upgrade and uninstall (KUBECONFIG, IMPORT: test/e2e/install.sh)
	test/e2e/install.sh

e2e-health: ### Show on a node of a cluster (KUBECONFIG) that its kubelet learns of an unhealthy volume
	test/e2e/health.sh

e2e-faults: ### Have calls fail on command, and show what a cluster (KUBECONFIG) does then (SCENARIOS: test/e2e/faults.sh)
	test/e2e/faults.sh

e2e-burst: ### Create 10,000 claims at once on a cluster (KUBECONFIG, STORAGE_CLASS: test/e2e/burst.sh)
	test/e2e/burst.sh

e2e-upstream: ### Run the suites that deploy hostpathplugin on a cluster (KUBECONFIG, E2E_TEST, IMPORT: test/e2e/upstream.sh)
	test/e2e/upstream.sh

e2e-hostpath-deploy: ### Install hostpathplugin on a cluster with upstream's deploy scripts (KUBECONFIG, IMPORT, SOURCE: test/e2e/hostpath-deploy.sh)
	test/e2e/hostpath-deploy.sh

fuzz: ### Run each fuzz target for FUZZTIME (30s)
	@set -e; for package in $$(grep -rl --include='*_test.go' '^func Fuzz' internal pkg test cmd 2>/dev/null | xargs -r -n1 dirname | sort -u); do \
		for target in $$(grep -rhoE '^func Fuzz[A-Za-z0-9_]+' $$package/*_test.go | cut -c6- | sort -u); do \
			echo "== $$package $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x ./$$package; \
		done; \
	done

lint: ## go vet, golangci-lint, gofumpt, shellcheck, actionlint (installs shellcheck)
	@hack/ensure-tools.sh --for lint
	shellcheck -x -a $$(git grep -lE '^#!' -- '*.sh' .ci/run)
	$(GO) run github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT_VERSION)
	$(GO) vet ./...
	@lint="$(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)"; \
	if golangci-lint version 2>/dev/null | grep -q '$(GOLANGCI_LINT_VERSION:v%=%)'; then lint=golangci-lint; fi; \
	for module in . pkg/touchstonetest test/legacy test/manifests test/rerun; do echo "$$lint run ./... in $$module"; (cd $$module && $$lint run ./...) || exit; done
	@files=$$(if command -v gofumpt >/dev/null; then gofumpt -l .; else $(GO) run mvdan.cc/gofumpt@$(GOFUMPT_VERSION) -l .; fi); \
	if [ -n "$$files" ]; then echo "gofumpt would change:"; echo "$$files"; exit 1; fi

image: ## Build the container image with docker, podman or buildah; ARCHIVE=file also writes it there
	hack/build-image.sh --image $(IMAGE) $(if $(VERSION),--version $(VERSION)) $(if $(ARCHIVE),--archive $(ARCHIVE))

image-hostpath: ### Build the image hostpathplugin, to use in place of csi-driver-host-path's (docs/hostpath.md)
	hack/build-image.sh --hostpath --image $(IMAGE) $(if $(VERSION),--version $(VERSION)) $(if $(ARCHIVE),--archive $(ARCHIVE))

sidecars: ### Build the images of Kubernetes' CSI sidecars from their Go modules, into out/sidecars
	hack/build-sidecars.sh $(SIDECARS)

PREFIX  ?= /usr/local
DESTDIR ?=

install: build ## Install the binary, its manual pages and its systemd unit below PREFIX (/usr/local)
	install -D -m 0755 bin/touchstone $(DESTDIR)$(PREFIX)/bin/touchstone
	bin/touchstone man $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)/etc/systemd/system
	bin/touchstone completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/touchstone
	sed 's,/usr/bin/touchstone,$(PREFIX)/bin/touchstone,' deploy/systemd/touchstone.service > $(DESTDIR)/etc/systemd/system/touchstone.service
	[ -e $(DESTDIR)/etc/touchstone/config.yaml ] || install -D -m 0644 deploy/systemd/config.yaml $(DESTDIR)/etc/touchstone/config.yaml

uninstall: ### Remove what `make install` has installed; configuration, state and volumes stay
	rm -f $(DESTDIR)$(PREFIX)/bin/touchstone $(DESTDIR)$(PREFIX)/share/man/man1/touchstone*.1 \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions/touchstone $(DESTDIR)/etc/systemd/system/touchstone.service

packages: ### Build deb and rpm packages for this machine, or for ARCH="amd64 arm64", into out/dist
	hack/dist.sh --only-packages --arch "$(or $(ARCH),$(shell $(GO) env GOARCH))" $(if $(VERSION),--version $(VERSION))

# REGISTRY=ghcr.io/OWNER is where the chart's image will be. DISTFLAGS: hack/dist.sh --help.
dist: ### Build all that a release has (VERSION, REGISTRY): binaries, packages, images, chart, SBOM, notes, checksums; into out/dist
	hack/dist.sh $(if $(VERSION),--version $(VERSION)) $(if $(REGISTRY),--registry $(REGISTRY)) $(DISTFLAGS)

clean: ### Remove what the targets above have made
	@if grep -qs ' $(abspath $(OUT))/' /proc/self/mountinfo; then echo "make clean: something is still mounted below $(OUT): unpublish it first" >&2; exit 1; fi
	rm -rf bin $(OUT)

# The driver and the tools that make and check filesystems.
#
# Mode all or node needs a privileged container as root. Mode controller needs
# neither: run it as user 65532, which owns the directories below. Where volumes
# are directories run it as root with the capabilities in
# deploy/kustomize/overlays/single-node/controller.yaml.
#
# Where no registry is in reach, hack/build-image.sh makes what the last stage's
# FROM and first RUN say, and leaves the rest to this file.

FROM docker.io/library/golang:1.26-bookworm AS builder
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY cmd cmd
COPY internal internal
COPY pkg pkg
ARG VERSION=
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /touchstone ./cmd/touchstone

FROM docker.io/library/debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends e2fsprogs xfsprogs btrfs-progs socat \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/apt /var/log/dpkg.log /usr/share/doc /usr/share/man /usr/share/locale
RUN groupadd --gid 65532 touchstone \
    && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /var/lib/touchstone --shell /usr/sbin/nologin touchstone \
    && install -d -o touchstone -g touchstone -m 0750 /var/lib/touchstone /var/lib/touchstone/state /var/lib/touchstone/pool /run/touchstone
COPY --from=builder /touchstone /usr/local/bin/touchstone

ARG VERSION=
ARG COMMIT=
LABEL org.opencontainers.image.title="touchstone" \
      org.opencontainers.image.description="A CSI driver with real volumes, to test against and to learn from" \
      org.opencontainers.image.source="https://github.com/touchstone-csi/touchstone" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}"
# No USER: each manifest says which mode it runs, and so as whom.
ENTRYPOINT ["/usr/local/bin/touchstone"]

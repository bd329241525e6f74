#!/usr/bin/env bash
# Makes a certificate authority and a certificate for the snapshot-metadata Service,
# and gives them to the cluster: the Secret to the sidecar, the authority to clients
# in a SnapshotMetadataService. Run again, it makes new ones; the sidecar takes them
# up by itself. The authority's key is kept nowhere.
#
#   certificate.sh
#
#   KUBECTL    how kubectl is called (kubectl)
#   NAMESPACE  where the driver is (touchstone)
#   NAME       the chart's name (touchstone)
#   DRIVER     the driver's name (csi.touchstone.dev)
#   DAYS       how long the certificate is good (365)
set -euo pipefail

KUBECTL=${KUBECTL:-kubectl}
NAMESPACE=${NAMESPACE:-touchstone}
NAME=${NAME:-touchstone}
DRIVER=${DRIVER:-csi.touchstone.dev}
DAYS=${DAYS:-365}

command -v openssl >/dev/null || {
	echo "certificate: openssl is missing: install it, for example: sudo apt-get install openssl" >&2
	exit 2
}

service=$NAME-snapshot-metadata
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

key() { openssl ecparam -genkey -name prime256v1 -noout -out "$work/$1"; }

key ca.key
openssl req -x509 -new -key "$work/ca.key" -days "$DAYS" -subj "/CN=$service authority" -out "$work/ca.crt"
key tls.key
openssl req -new -key "$work/tls.key" -subj "/CN=$service" -out "$work/tls.csr"
printf 'subjectAltName=DNS:%s,DNS:%s,DNS:%s\nextendedKeyUsage=serverAuth\n' \
	"$service.$NAMESPACE" "$service.$NAMESPACE.svc" "$service.$NAMESPACE.svc.cluster.local" >"$work/extensions"
openssl x509 -req -in "$work/tls.csr" -CA "$work/ca.crt" -CAkey "$work/ca.key" -CAcreateserial -days "$DAYS" \
	-extfile "$work/extensions" -out "$work/tls.crt"

# KUBECTL may have arguments, and it and KUBECONFIG may be relative paths.
$KUBECTL create secret tls "$service" --namespace "$NAMESPACE" --cert "$work/tls.crt" --key "$work/tls.key" --dry-run=client -o yaml | $KUBECTL apply -f -
$KUBECTL apply -f - <<MANIFEST
apiVersion: cbt.storage.k8s.io/v1beta1
kind: SnapshotMetadataService
metadata:
  name: $DRIVER
spec:
  address: $service.$NAMESPACE:6443
  caCert: $(base64 <"$work/ca.crt" | tr -d '\n')
  audience: $service
MANIFEST

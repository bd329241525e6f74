{{- define "touchstone.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* The names of all objects begin with it. */}}
{{- define "touchstone.fullname" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- $name := include "touchstone.name" . }}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* (list root COMPONENT): what selects the pods of a component; it must never change. */}}
{{- define "touchstone.selector" -}}
app.kubernetes.io/name: {{ include "touchstone.name" (index . 0) }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- /* (list root COMPONENT): commonLabels may replace any but those of the selector. */}}
{{- define "touchstone.labels" -}}
{{- $root := index . 0 }}
{{- $selector := include "touchstone.selector" . | fromYaml }}
{{- mergeOverwrite (dict
  "app.kubernetes.io/part-of" "touchstone"
  "app.kubernetes.io/version" $root.Chart.AppVersion
  "app.kubernetes.io/managed-by" $root.Release.Service
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_")) $root.Values.commonLabels $selector | toYaml }}
{{- end }}

{{- /* (dict "root" $ "component" NAME "name" NAME and, where there are any, "cluster" true
       for an object without a namespace, "labels" DICT, "annotations" DICT) */}}
{{- define "touchstone.metadata" -}}
name: {{ .name }}
{{- if not .cluster }}
namespace: {{ .root.Release.Namespace }}
{{- end }}
labels:
  {{- mergeOverwrite (include "touchstone.labels" (list .root .component) | fromYaml) (.labels | default dict) | toYaml | nindent 2 }}
{{- with mergeOverwrite (deepCopy .root.Values.commonAnnotations) (.annotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* (list root COMPONENT): the name of its service account */}}
{{- define "touchstone.account" -}}
{{- $component := index . 1 }}
{{- (index (index . 0).Values $component).serviceAccount.name | default (printf "%s-%s" (include "touchstone.fullname" (index . 0)) $component) }}
{{- end }}

{{- define "touchstone.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- /* (list root COMPONENT): the metadata of its pods */}}
{{- define "touchstone.podMetadata" -}}
{{- $is := index (index . 0).Values (index . 1) -}}
labels:
  {{- mergeOverwrite (include "touchstone.labels" . | fromYaml) $is.podLabels (include "touchstone.selector" . | fromYaml) | toYaml | nindent 2 }}
annotations:
  {{- mergeOverwrite (dict "kubectl.kubernetes.io/default-container" "touchstone") (index . 0).Values.commonAnnotations $is.podAnnotations | toYaml | nindent 2 }}
{{- end }}

{{- /* (list root COMPONENT): what its pods have beside containers, volumes and users */}}
{{- define "touchstone.pod" -}}
{{- $is := index (index . 0).Values (index . 1) -}}
serviceAccountName: {{ include "touchstone.account" . }}
# Only the sidecars get a token.
automountServiceAccountToken: false
enableServiceLinks: false
priorityClassName: {{ $is.priorityClassName }}
terminationGracePeriodSeconds: {{ include "touchstone.gracePeriod" . }}
nodeSelector:
  {{- mergeOverwrite (dict "kubernetes.io/os" "linux") $is.nodeSelector | toYaml | nindent 2 }}
{{- with (index . 0).Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $field := tuple "tolerations" "affinity" "topologySpreadConstraints" "dnsConfig" "initContainers" }}
{{- with index $is $field }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- /* A duration such as 1m30s, in seconds */}}
{{- define "touchstone.seconds" -}}
{{- $seconds := 0 }}
{{- $units := dict "h" 3600 "m" 60 "s" 1 "ms" 0.001 "us" 0.000001 "µs" 0.000001 "μs" 0.000001 "ns" 0.000000001 }}
{{- range regexFindAll "[0-9.]+[a-zµμ]+" . -1 }}
{{- $unit := regexFind "[a-zµμ]+" . }}
{{- $seconds = addf $seconds (mulf (trimSuffix $unit .) (index $units $unit)) }}
{{- end }}
{{- $seconds }}
{{- end }}

{{- /* (list root COMPONENT): the grace period of its pods, in which the driver ends its operations */}}
{{- define "touchstone.gracePeriod" -}}
{{- $grace := (index (index . 0).Values (index . 1)).terminationGracePeriodSeconds }}
{{- $drain := index (include "touchstone.settings" . | fromYaml) "drain-timeout" | default "25s" }}
{{- if le (float64 $grace) (include "touchstone.seconds" $drain | float64) }}
{{- fail (printf "%s.terminationGracePeriodSeconds: %v is not more than the setting drain-timeout, %s: the kubelet would kill the driver before its operations have ended; raise it, or shorten settings.drain-timeout" (index . 1) $grace $drain) }}
{{- end }}
{{- $grace }}
{{- end }}

{{- /* (list root COMPONENT): the settings of its driver */}}
{{- define "touchstone.settings" -}}
{{- $values := (index . 0).Values }}
{{- mergeOverwrite (deepCopy $values.settings) (index $values (index . 1)).settings | toYaml }}
{{- end }}

{{- /* The key of the taint that the node plugin removes, or "" */}}
{{- define "touchstone.startupTaint" -}}
{{- index (include "touchstone.settings" (list . "node") | fromYaml) "startup-taint" | default "" }}
{{- end }}

{{- /* values of one setting, as the driver reads them: a line of a CSV file */ -}}
{{- define "touchstone.csv" -}}
{{- range $i, $each := . }}
{{- if $i }},{{ end }}
{{- if regexMatch "[,\"]" $each }}"{{ replace "\"" "\"\"" $each }}"{{ else }}{{ $each }}{{ end }}
{{- end }}
{{- end }}

{{- /* (list root COMPONENT): the environment that its settings make */ -}}
{{- define "touchstone.environment" -}}
{{- $settings := include "touchstone.settings" . | fromYaml }}
{{- $is := index (index . 0).Values (index . 1) }}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- range $flag, $value := $settings }}
{{- if not (and (kindIs "slice" $value) (empty $value)) }}
- name: TOUCHSTONE_{{ $flag | upper | replace "-" "_" }}
{{- if kindIs "slice" $value }}
  value: {{ include "touchstone.csv" $value | quote }}
{{- else if and (kindIs "float64" $value) (eq $value (floor $value)) }}
  value: {{ int64 $value | quote }}
{{- else }}
  value: {{ toString $value | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- with $is.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The settings of all modes, besides their socket and state. */ -}}
{{- define "touchstone.arguments" -}}
- --driver-name={{ .Values.driverName }}
- --node-id=$(NODE_NAME)
- --http-endpoint=:{{ .Values.http.port }}
{{- range $pool, $directory := .Values.pool.pools }}
- --pool={{ $pool }}={{ $.Values.pool.path }}/{{ $directory }}
{{- end }}
{{- end }}

{{- define "touchstone.probes" -}}
ports: [{name: http, containerPort: {{ .Values.http.port }}}]
# The first start may have a pool to make or a filesystem to check.
startupProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 2
  failureThreshold: 150
# /livez calls Probe through the driver's own socket.
livenessProbe:
  httpGet: {path: /livez, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{- /* What a container needs that only talks to a socket and the API server. */ -}}
{{- define "touchstone.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* (list root COMPONENT): fields of its driver's container */}}
{{- define "touchstone.driver" -}}
{{- $root := index . 0 }}
{{- $is := index $root.Values (index . 1) -}}
image: {{ include "touchstone.image" $root }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
{{- with $is.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
resources:
  {{- toYaml $is.resources | nindent 2 }}
{{- include "touchstone.probes" $root | nindent 0 }}
{{- end }}

{{- /* The credentials, for the containers that need them only. */ -}}
{{- define "touchstone.credentials" -}}
- name: credentials
  projected:
    defaultMode: 0444
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3607}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end }}

{{- /* (dict "root" $ "name" CONTAINER "image" NAME "is" VALUES "socket" PATH "arguments" LIST
       and, where there are any, "environment" DICT "mounts" LIST "more" FIELDS) */ -}}
{{- define "touchstone.sidecar" -}}
{{- $sidecars := .root.Values.sidecars }}
- name: {{ .name }}
  image: {{ .is.repository | default (printf "%s/%s" $sidecars.repository .image) }}:{{ .is.tag }}{{ with .is.digest }}@{{ . }}{{ end }}
  imagePullPolicy: {{ $sidecars.pullPolicy }}
  args:
    - --csi-address={{ .socket }}
    {{- $metrics := list }}
    {{- if and $sidecars.metrics.enabled .is.metricsPort }}{{ $metrics = list (printf "--http-endpoint=:%d" (int .is.metricsPort)) }}{{ end }}
    {{- range concat .arguments $metrics (list (printf "-v=%v" $sidecars.verbosity)) .is.args }}
    - {{ . }}
    {{- end }}
  {{- if $metrics }}
  ports: [{name: {{ .name }}, containerPort: {{ .is.metricsPort }}}]
  {{- end }}
  {{- $environment := list }}
  {{- range $variable, $field := .environment }}
  {{- $environment = append $environment (dict "name" $variable "valueFrom" (dict "fieldRef" (dict "fieldPath" $field))) }}
  {{- end }}
  {{- with concat $environment (.is.env | default list) }}
  env:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- mergeOverwrite (include "touchstone.unprivileged" . | fromYaml) (.is.securityContext | default dict) | toYaml | nindent 4 }}
  resources:
    {{- toYaml (.is.resources | default $sidecars.resources) | nindent 4 }}
  volumeMounts:
    - {name: socket, mountPath: {{ dir .socket }}, readOnly: true}
    - {name: credentials, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
    {{- range .mounts }}
    - {{ toJson . }}
    {{- end }}
  {{- with .more }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- /* (dict "root" $ "socket" PATH "local" BOOL "account" NAME) */ -}}
{{- define "touchstone.provisioner" -}}
{{- $root := .root }}
{{- /* Names of claims for annotations and logs; no answer is waited for longer
       than a copy may take, and what goes on meanwhile is joined by the retry. */ -}}
{{- $arguments := list "--extra-create-metadata" "--timeout=60s" "--kube-api-qps=50" "--kube-api-burst=100" }}
{{- $environment := dict }}
{{- if .local }}
{{- $arguments = concat $arguments (list "--node-deployment" "--strict-topology") }}
{{- $_ := set $environment "NODE_NAME" "spec.nodeName" }}
{{- end }}
{{- if $root.Values.storageCapacity.enabled }}
{{- $arguments = concat $arguments (list "--enable-capacity" "--capacity-ownerref-level=1" (printf "--capacity-poll-interval=%s" $root.Values.storageCapacity.pollInterval)) }}
{{- $_ := set $environment "NAMESPACE" "metadata.namespace" }}
{{- $_ := set $environment "POD_NAME" "metadata.name" }}
{{- end }}
{{- include "touchstone.sidecar" (dict "root" $root "name" "provisioner" "image" "csi-provisioner" "is" $root.Values.sidecars.provisioner "socket" .socket "arguments" $arguments "environment" $environment) }}
{{- end }}

{{- define "touchstone.snapshotMetadata" -}}
{{- $arguments := list "--tls-cert=/tls/tls.crt" "--tls-key=/tls/tls.key" "--port=50051" "--http-endpoint=:8081" }}
{{- $mounts := list (dict "name" "tls" "mountPath" "/tls" "readOnly" true) }}
{{- $more := dict
  "ports" (list (dict "name" "metadata" "containerPort" 50051) (dict "name" "metadata-http" "containerPort" 8081))
  "readinessProbe" (dict "httpGet" (dict "path" "/health" "port" "metadata-http") "periodSeconds" 5) }}
{{- include "touchstone.sidecar" (dict "root" .root "name" "snapshot-metadata" "image" "csi-snapshot-metadata" "is" .root.Values.sidecars.snapshotMetadata "socket" .socket "arguments" $arguments "mounts" $mounts "more" $more) }}
{{- end }}

{{- define "touchstone.snapshotter" -}}
{{- $arguments := list "--extra-create-metadata" "--timeout=60s" "--kube-api-qps=50" "--kube-api-burst=100" }}
{{- $environment := dict }}
{{- if .local }}
{{- $arguments = append $arguments "--node-deployment" }}
{{- $_ := set $environment "NODE_NAME" "spec.nodeName" }}
{{- end }}
{{- if not (include "touchstone.groups" .root) }}
{{- $arguments = append $arguments "--feature-gates=CSIVolumeGroupSnapshot=false" }}
{{- end }}
{{- include "touchstone.sidecar" (dict "root" .root "name" "snapshotter" "image" "csi-snapshotter" "is" .root.Values.sidecars.snapshotter "socket" .socket "arguments" $arguments "environment" $environment) }}
{{- end }}

{{- /* (dict PROTOCOL PORTS …): a rule of a NetworkPolicy; without ports it allows all */}}
{{- define "touchstone.egress" -}}
{{- $ports := list }}
{{- range $protocol, $numbers := . }}
{{- range $numbers }}{{ $ports = append $ports (dict "protocol" $protocol "port" .) }}{{ end }}
{{- end }}
{{- if $ports }}{{ dict "ports" $ports | toYaml }}{{ else }}{}{{ end }}
{{- end }}

{{- /* "true" where snapshots are wanted: by the value, or if the cluster has their types */}}
{{- define "touchstone.snapshots" -}}
{{- if has .Values.snapshots.enabled (list true (ternary "auto" "" (.Capabilities.APIVersions.Has "snapshot.storage.k8s.io/v1"))) }}true{{ end }}
{{- end }}

{{- /* The same of group snapshots, which no node can take alone */}}
{{- define "touchstone.groups" -}}
{{- $there := and (eq .Values.layout "central") (.Capabilities.APIVersions.Has "groupsnapshot.storage.k8s.io/v1") }}
{{- if and (include "touchstone.snapshots" .) (has .Values.snapshots.groups (list true (ternary "auto" "" $there))) }}true{{ end }}
{{- end }}

{{- /* (list $ ROLE COMPONENT) */ -}}
{{- define "touchstone.binding" }}
{{- $root := index . 0 }}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  {{- include "touchstone.metadata" (dict "root" $root "component" "rbac" "cluster" true "name" (printf "%s-%s" (include "touchstone.fullname" $root) (index . 1))) | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ include "touchstone.fullname" $root }}-{{ index . 1 }}
subjects:
  - kind: ServiceAccount
    name: {{ include "touchstone.account" (list $root (index . 2)) }}
    namespace: {{ $root.Release.Namespace }}
{{- end }}

{{- define "touchstone.labels" -}}
app.kubernetes.io/name: {{ .Values.name }}
app.kubernetes.io/part-of: touchstone
{{- end }}

{{- define "touchstone.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* What can be set. A variable of the environment that is misspelt would say nothing. */}}
{{- define "touchstone.settings" -}}
allow-path check-period coalesce-window config direct-volume-root disable-capability
drain-timeout ephemeral-mkfs-options first-loop-device health-evented-relist-period health-events
health-probe-timeout health-relist-period host-path-map io-error-hold kata-runtime kubelet-registration-endpoint
log-format max-volume-size max-volumes-per-node nodes overcommit pool-image-size proxy-endpoint
ready-file shared shim-root topology v volume-mount-group
{{- end }}

{{- /* The environment that (list root SETTINGS STRONGER) make. */ -}}
{{- define "touchstone.environment" -}}
{{- $settings := mergeOverwrite (deepCopy (index . 1)) (index . 2) }}
{{- range list "mode" "endpoint" "driver-name" "node-id" "state-dir" "pool" "kubelet-dir" "cgroup-root" "kubelet-registration-dir" "http-endpoint" "kubeconfig" }}
{{- if hasKey $settings . }}{{ fail (printf "settings: %s is set by the chart" .) }}{{ end }}
{{- end }}
{{- $known := regexSplit "\\s+" (include "touchstone.settings" .) -1 }}
{{- range keys $settings | sortAlpha }}
{{- if not (has . $known) }}{{ fail (printf "settings: the driver has no %s; values.yaml lists what it has" .) }}{{ end }}
{{- end }}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- range $flag, $value := $settings }}
{{- if not (and (kindIs "slice" $value) (empty $value)) }}
- name: TOUCHSTONE_{{ $flag | upper | replace "-" "_" }}
{{- if kindIs "slice" $value }}
  value: {{ join "," $value | quote }}
{{- else if and (kindIs "float64" $value) (eq $value (floor $value)) }}
  value: {{ int64 $value | quote }}
{{- else }}
  value: {{ toString $value | quote }}
{{- end }}
{{- end }}
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
livenessProbe:
  httpGet: {path: /healthz, port: http}
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
  image: {{ $sidecars.repository }}/{{ .image }}:{{ .is.tag }}
  imagePullPolicy: {{ $sidecars.pullPolicy }}
  args:
    - --csi-address={{ .socket }}
    {{- range concat .arguments (list (printf "-v=%v" $sidecars.verbosity)) .is.args }}
    - {{ . }}
    {{- end }}
  {{- with .environment }}
  env:
    {{- range $variable, $field := . }}
    - name: {{ $variable }}
      valueFrom: {fieldRef: {fieldPath: {{ $field }}}}
    {{- end }}
  {{- end }}
  securityContext:
    {{- include "touchstone.unprivileged" . | nindent 4 }}
  resources:
    {{- toYaml $sidecars.resources | nindent 4 }}
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
{{- if not .root.Values.snapshots.groups }}
{{- $arguments = append $arguments "--feature-gates=CSIVolumeGroupSnapshot=false" }}
{{- end }}
{{- include "touchstone.sidecar" (dict "root" .root "name" "snapshotter" "image" "csi-snapshotter" "is" .root.Values.sidecars.snapshotter "socket" .socket "arguments" $arguments "environment" $environment) }}
{{- end }}

{{- /* (list $ ROLE ACCOUNT) */ -}}
{{- define "touchstone.binding" }}
{{- $root := index . 0 }}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $root.Values.name }}-{{ index . 1 }}
  labels:
    {{- include "touchstone.labels" $root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $root.Values.name }}-{{ index . 1 }}
subjects:
  - kind: ServiceAccount
    name: {{ $root.Values.name }}-{{ index . 2 }}
    namespace: {{ $root.Release.Namespace }}
{{- end }}

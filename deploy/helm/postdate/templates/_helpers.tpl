{{- define "postdate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 50 characters: a Job's name and what is added to it must fit into 63. */}}
{{- define "postdate.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "postdate.evaluationRedis" -}}
{{- /* Its pods get a label of this name and a hash: 63 characters in all. */ -}}
{{- printf "%s-evaluation-redis" (include "postdate.fullname" . | trunc 34 | trimSuffix "-") -}}
{{- end -}}

{{- define "postdate.evaluationRedisLabels" -}}
app.kubernetes.io/name: {{ include "postdate.evaluationRedis" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "postdate.selectorLabels" -}}
app.kubernetes.io/name: {{ include "postdate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of the Job's pod. They are none of the Deployment's, whose Service and policies must not find it. */}}
{{- define "postdate.checkLabels" -}}
app.kubernetes.io/name: {{ include "postdate.fullname" . }}-check
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels that every object has, and no other value may set. */}}
{{- define "postdate.chartLabels" -}}
{{ include "postdate.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Labels of an object: (list ROOT FURTHER OURS). `commonLabels`, over them FURTHER, a map; over all OURS, a text. */}}
{{- define "postdate.mergedLabels" -}}
{{- $further := merge (deepCopy (default dict (index . 1))) (default dict (index . 0).Values.commonLabels) -}}
{{- range $label, $_ := index . 2 | fromYaml -}}{{- $_ := unset $further $label -}}{{- end -}}
{{- with $further }}{{ toYaml . }}{{ "\n" }}{{ end -}}
{{ index . 2 }}
{{- end -}}

{{- define "postdate.labels" -}}
{{ include "postdate.mergedLabels" (list . dict (include "postdate.chartLabels" .)) }}
{{- end -}}

{{/* Labels of an object that has a value for further ones: (list ROOT FURTHER). */}}
{{- define "postdate.labelsWith" -}}
{{ include "postdate.mergedLabels" (list (index . 0) (index . 1) (include "postdate.chartLabels" (index . 0))) }}
{{- end -}}

{{/* A duration of Prometheus, such as 30s, in milliseconds. */}}
{{- define "postdate.milliseconds" -}}
{{- $units := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 -}}
{{- mul (regexFind "^[0-9]+" . | int64) (get $units (regexFind "[a-z]+$" .)) -}}
{{- end -}}

{{/* Whether the API speaks TLS, as a text that is empty if not. */}}
{{- define "postdate.speaksTls" -}}
{{- if .Values.secrets.adminTls.name -}}true{{- end -}}
{{- end -}}

{{/* Name of the Service in the cluster, which the API's certificate is for. */}}
{{- define "postdate.serverName" -}}
{{- printf "%s.%s.svc" (include "postdate.fullname" .) .Release.Namespace -}}
{{- end -}}

{{/* What the operator's two monitors say of a scrape: (list ROOT MONITOR). */}}
{{- define "postdate.endpoint" -}}
{{- $root := index . 0 -}}
{{- $monitor := index . 1 -}}
port: http
path: /metrics
{{- if include "postdate.speaksTls" $root }}
{{- $tls := $root.Values.secrets.adminTls }}
{{- /* A pod is scraped by its address, which no certificate names. */}}
{{- $config := dict "serverName" (include "postdate.serverName" $root) }}
{{- if $tls.ca }}{{ $_ := set $config "ca" (dict "secret" (dict "name" $tls.name "key" $tls.ca)) }}{{ end }}
{{- range $key, $value := $monitor.tlsConfig }}{{ $_ := set $config $key $value }}{{ end }}
scheme: https
tlsConfig:
  {{- toYaml $config | nindent 2 }}
{{- end }}
interval: {{ $monitor.interval }}
scrapeTimeout: {{ $monitor.scrapeTimeout }}
{{- with $monitor.relabelings }}
relabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $monitor.metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Where a port of the pod listens: (list ROOT PORT). */}}
{{- define "postdate.listen" -}}
{{- $address := (index . 0).Values.listenAddress -}}
{{- printf "%s:%d" (ternary (printf "[%s]" $address) $address (contains ":" $address)) (int (index . 1)) -}}
{{- end -}}

{{/* Where and how the kubelet asks a probe: (list ROOT PATH). It does not look at the certificate. */}}
{{- define "postdate.probe" -}}
{{- $root := index . 0 -}}
httpGet:
  path: {{ index . 1 }}
{{- if $root.Values.probePort }}
  port: probes
{{- else }}
  port: http
  {{- if include "postdate.speaksTls" $root }}
  scheme: HTTPS
  {{- end }}
{{- end }}
{{- end -}}

{{- define "postdate.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* The configuration file: `config`, and what the chart owns. Whatever is rendered first asks for it, so the
values are judged here. */}}
{{- define "postdate.config" -}}
{{- include "postdate.validate" . -}}
{{- $at := "/run/secrets/postdate" -}}
{{- $secrets := .Values.secrets -}}
{{- $config := deepCopy .Values.config -}}
{{- $_ := set $config "shutdown_timeout" (printf "%ds" (int .Values.shutdownTimeoutSeconds)) -}}
{{- $admin := dict "listen" (include "postdate.listen" (list . 8025)) -}}
{{- if .Values.probePort -}}{{- $_ := set $admin "probe_listen" (include "postdate.listen" (list . .Values.probePort)) -}}{{- end -}}
{{- if include "postdate.speaksTls" . -}}
{{- $_ := set $admin "tls" (dict "certificate" (printf "%s/admin/tls.crt" $at) "key" (printf "%s/admin/tls.key" $at)) -}}
{{- end -}}
{{- if $secrets.writeTokens.name -}}{{- $_ := set $admin "write_tokens_file" (printf "%s/admin/write-tokens" $at) -}}{{- end -}}
{{- if $secrets.readTokens.name -}}{{- $_ := set $admin "read_tokens_file" (printf "%s/admin/read-tokens" $at) -}}{{- end -}}
{{- $_ := set $config "admin" $admin -}}
{{- if .Values.evaluationRedis.enabled -}}
{{- $_ := set $config "redis" (set (default dict $config.redis) "url" (printf "redis://%s:6379" (include "postdate.evaluationRedis" .))) -}}
{{- end -}}
{{- range $value, $key := include "postdate.redisFiles" . | fromYaml -}}
{{- if (get $secrets $value).name -}}
{{- $redis := default dict $config.redis -}}
{{- $_ := set $config "redis" (set $redis $key (printf "%s/redis/%s" $at (trimSuffix "_file" $key))) -}}
{{- end -}}
{{- end -}}
{{- range $name, $_ := $secrets.rabbitmq -}}
{{- $all := default dict $config.rabbitmq -}}
{{- $one := default dict (get $all $name) -}}
{{- $_ := set $all $name (set $one "url_file" (printf "%s/rabbitmq/%s/url" $at $name)) -}}
{{- $_ := set $config "rabbitmq" $all -}}
{{- end -}}
{{- range $name, $_ := $secrets.kafka -}}
{{- $_ := set (get $config.kafka $name) "properties_file" (printf "%s/kafka/%s/properties" $at $name) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* Which Secret holds the file that which key of `config.redis` names. */}}
{{- define "postdate.redisFiles" -}}
redis: url_file
redisPassword: password_file
sentinelPassword: sentinel_password_file
{{- end -}}

{{/* One key of one Secret as one file of the projected volume: (list REFERENCE PATH). */}}
{{- define "postdate.secretFile" -}}
- secret:
    name: {{ (index . 0).name }}
    items:
      - key: {{ (index . 0).key }}
        path: {{ index . 1 }}
{{- end -}}

{{/* Certificate, key and authority of the API as files of the projected volume: those of one Secret, so that they change
together. */}}
{{- define "postdate.tlsFiles" -}}
- secret:
    name: {{ .name }}
    items:
      - key: {{ .certificate }}
        path: admin/tls.crt
      - key: {{ .key }}
        path: admin/tls.key
      {{- with .ca }}
      - key: {{ . }}
        path: admin/ca.crt
      {{- end }}
{{- end -}}

{{/* The volumes: (list ROOT CONFIGMAP). Files are readable by every user, for the pod's may be any; nobody
else is in the pod. */}}
{{- define "postdate.volumes" -}}
{{- $root := index . 0 -}}
{{- $secrets := $root.Values.secrets -}}
- name: config
  configMap:
    name: {{ index . 1 }}
    defaultMode: 0444
- name: secrets
  projected:
    defaultMode: 0444
    sources:
      {{- if $secrets.writeTokens.name }}
      {{- include "postdate.secretFile" (list $secrets.writeTokens "admin/write-tokens") | nindent 6 }}
      {{- end }}
      {{- if $secrets.readTokens.name }}
      {{- include "postdate.secretFile" (list $secrets.readTokens "admin/read-tokens") | nindent 6 }}
      {{- end }}
      {{- if include "postdate.speaksTls" $root }}
      {{- include "postdate.tlsFiles" $secrets.adminTls | nindent 6 }}
      {{- end }}
      {{- range $value, $key := include "postdate.redisFiles" $root | fromYaml }}
      {{- with get $secrets $value }}{{ if .name }}
      {{- include "postdate.secretFile" (list . (printf "redis/%s" (trimSuffix "_file" $key))) | nindent 6 }}
      {{- end }}{{ end }}
      {{- end }}
      {{- range $name, $reference := $secrets.rabbitmq }}
      {{- include "postdate.secretFile" (list $reference (printf "rabbitmq/%s/url" $name)) | nindent 6 }}
      {{- end }}
      {{- range $name, $reference := $secrets.kafka }}
      {{- include "postdate.secretFile" (list $reference (printf "kafka/%s/properties" $name)) | nindent 6 }}
      {{- end }}
{{- with $root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* What every container of ours has. */}}
{{- define "postdate.container" -}}
image: {{ include "postdate.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
# What it said last, for `kubectl describe pod`.
terminationMessagePolicy: FallbackToLogsOnError
env:
  # So that all that is run in the container, by `kubectl exec` too, reads the configuration,
  - name: POSTDATE_CONFIG
    value: /etc/postdate/postdate.yaml
  # and `kubectl exec ... -- postdate status` can log in.
  - name: POSTDATE_TOKEN_FILE
    value: /run/secrets/postdate/admin/{{ ternary "write-tokens" "read-tokens" (not (empty .Values.secrets.writeTokens.name)) }}
  {{- if include "postdate.speaksTls" . }}
  {{- $given := list }}
  {{- range .Values.extraEnv }}{{ $given = append $given .name }}{{ end }}
  # So that it speaks TLS, by a name that is in the certificate.
  {{- if not (has "POSTDATE_URL" $given) }}
  - name: POSTDATE_URL
    value: https://localhost:8025
  {{- end }}
  {{- if and .Values.secrets.adminTls.ca (not (has "POSTDATE_CA" $given)) }}
  - name: POSTDATE_CA
    value: /run/secrets/postdate/admin/ca.crt
  {{- end }}
  {{- end }}
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
resources:
  {{- toYaml .Values.resources | nindent 2 }}
volumeMounts:
  - name: config
    mountPath: /etc/postdate
    readOnly: true
  - name: secrets
    mountPath: /run/secrets/postdate
    readOnly: true
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* The container that judges the configuration with the very image, files and environment: (list ROOT CONNECT). */}}
{{- define "postdate.checkContainer" -}}
name: check
args: [check{{ if index . 1 }}, --connect{{ end }}]
{{ include "postdate.container" (index . 0) }}
{{- end -}}

{{/* Whether the check before changes connects, as a text that is empty if not. */}}
{{- define "postdate.checkConnects" -}}
{{- $connect := .Values.check.connect -}}
{{- if kindIs "invalid" $connect -}}{{- $connect = not .Values.evaluationRedis.enabled -}}{{- end -}}
{{- if $connect -}}true{{- end -}}
{{- end -}}

{{/* What the pods may reach, as `egress` of a NetworkPolicy. */}}
{{- define "postdate.egress" -}}
{{- $egress := .Values.networkPolicy.egress -}}
{{- range concat $egress.dns $egress.redis $egress.brokers }}
-
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .Values.evaluationRedis.enabled }}
- to:
    - podSelector:
        matchLabels:
          {{- include "postdate.evaluationRedisLabels" . | nindent 10 }}
  ports:
    - port: 6379
      protocol: TCP
{{- end }}
{{- end -}}

{{/* How replicas come and go: up at once, down one at a time, for each change moves partitions. */}}
{{- define "postdate.scalingBehavior" -}}
scaleUp:
  stabilizationWindowSeconds: 30
scaleDown:
  stabilizationWindowSeconds: 300
  policies:
    - type: Pods
      value: 1
      periodSeconds: 60
{{- end -}}

{{/* What every pod of ours has. */}}
{{- define "postdate.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- if not (kindIs "invalid" .Values.hostUsers) }}
hostUsers: {{ .Values.hostUsers }}
{{- end }}
{{- with .Values.dnsPolicy }}
dnsPolicy: {{ . }}
{{- end }}
{{- with .Values.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  seccompProfile:
    type: RuntimeDefault
  {{- with .Values.podSecurityContext }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

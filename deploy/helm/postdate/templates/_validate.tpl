{{/* What values.schema.json cannot say: rules between values, each broken one a sentence, all at once. */}}
{{- define "postdate.validate" -}}
{{- $v := .Values -}}
{{- $config := $v.config -}}
{{- $redis := default dict $config.redis -}}
{{- $wrong := list -}}
{{- if not $v.image.repository -}}
{{- $wrong = append $wrong "image.repository is empty: build the image from deploy/docker/Dockerfile, push it to a registry, and name it here" -}}
{{- end -}}
{{- if eq $v.image.tag "latest" -}}
{{- $wrong = append $wrong "image.tag is latest: name a version, so that every pod runs the same and a rollback goes back" -}}
{{- end -}}
{{- if not $config.routes -}}
{{- $wrong = append $wrong "config.routes is empty: a route says where messages come from and where they go (docs/kubernetes.md)" -}}
{{- end -}}
{{- if not (or $v.secrets.writeTokens.name $v.secrets.readTokens.name) -}}
{{- $wrong = append $wrong "secrets.writeTokens.name is empty: the API listens on the pod's address and needs a token; make a Secret and name it in secrets.writeTokens.name or secrets.readTokens.name" -}}
{{- end -}}
{{- $wrong = concat $wrong (include "postdate.validateAdmin" . | fromYamlArray) -}}
{{- if (default dict $config.cluster).name -}}
{{- $wrong = append $wrong "config.cluster.name would name every pod alike, and each needs a name of its own: leave it out, and each has its pod's; another one comes from extraEnv, as POSTDATE_CLUSTER__NAME with valueFrom.fieldRef" -}}
{{- end -}}
{{- if hasKey $config "shutdown_timeout" -}}
{{- $wrong = append $wrong "config.shutdown_timeout is the chart's to set: use shutdownTimeoutSeconds, which terminationGracePeriodSeconds follows" -}}
{{- end -}}
{{- if (default dict $config.traces).authorization -}}
{{- $wrong = append $wrong "config.traces.authorization is a secret: put it into a Secret and name it in extraEnv, as POSTDATE_TRACES__AUTHORIZATION with valueFrom.secretKeyRef" -}}
{{- end -}}
{{- $wrong = concat $wrong (include "postdate.validateRedis" . | fromYamlArray) -}}
{{- range $name, $one := $config.rabbitmq -}}
{{- $one := default dict $one -}}
{{- if contains "@" (toString $one.url) -}}
{{- $wrong = append $wrong (printf "config.rabbitmq.%s.url holds a password: put the URL into a Secret and name it in secrets.rabbitmq.%s" $name $name) -}}
{{- else if contains "@" (toString $one.urls) -}}
{{- $wrong = append $wrong (printf "config.rabbitmq.%s.urls hold a password: put the list, as [\"amqp://...\", \"amqp://...\"], into a Secret, and name it in extraEnv for POSTDATE_RABBITMQ__%s__URLS" $name (upper (replace "-" "_" $name))) -}}
{{- else if and (hasKey $v.secrets.rabbitmq $name) (or $one.url $one.urls $one.url_file) -}}
{{- $wrong = append $wrong (printf "config.rabbitmq.%s.url and secrets.rabbitmq.%s are both set: one of the two must go" $name $name) -}}
{{- end -}}
{{- end -}}
{{- range $name, $one := $config.kafka -}}
{{- $one := default dict $one -}}
{{- range $property, $_ := $one.properties -}}
{{- if regexMatch "(?i)pass|secret|token|private|\\.key\\.pem|oauthbearer\\.config|jaas" $property -}}
{{- $wrong = append $wrong (printf "config.kafka.%s.properties holds %s: put all properties into a Secret, one name=value a line, and name it in secrets.kafka.%s" $name $property $name) -}}
{{- end -}}
{{- end -}}
{{- if and (hasKey $v.secrets.kafka $name) (or $one.properties $one.properties_file) -}}
{{- $wrong = append $wrong (printf "config.kafka.%s.properties and secrets.kafka.%s are both set: put all properties into the Secret" $name $name) -}}
{{- end -}}
{{- end -}}
{{- $kafka := default dict $config.kafka -}}
{{- range $name, $_ := $v.secrets.kafka -}}
{{- if not (get $kafka $name) -}}
{{- $wrong = append $wrong (printf "secrets.kafka.%s belongs to no connection: config.kafka.%s must say its brokers" $name $name) -}}
{{- end -}}
{{- end -}}
{{- range $v.extraEnv -}}
{{- if or (eq .name "POSTDATE_CONFIG") (hasPrefix "POSTDATE_ADMIN__" .name) (eq .name "POSTDATE__SHUTDOWN_TIMEOUT") -}}
{{- $wrong = append $wrong (printf "extraEnv sets %s, which is the chart's to set" .name) -}}
{{- end -}}
{{- if and .value (regexMatch "^(POSTDATE_.*(PASSWORD|AUTHORIZATION|TOKEN|SECRET|KEY_PEM|OAUTHBEARER_CONFIG)|AWS_(SECRET_ACCESS_KEY|SESSION_TOKEN))$" .name) -}}
{{- $wrong = append $wrong (printf "extraEnv gives %s, a secret, as a plain value: put it into a Secret and name it in valueFrom.secretKeyRef" .name) -}}
{{- end -}}
{{- if regexMatch "://[^/@]*:[^/@]+@" (toString .value) -}}
{{- $wrong = append $wrong (printf "extraEnv gives %s a URL with a password: put it into a Secret and name it in valueFrom.secretKeyRef" .name) -}}
{{- end -}}
{{- end -}}
{{- if and $v.serviceMonitor.enabled $v.podMonitor.enabled -}}
{{- $wrong = append $wrong "serviceMonitor.enabled and podMonitor.enabled are both true: each pod would be scraped twice, so one of the two must go" -}}
{{- end -}}
{{- range $name := list "serviceMonitor" "podMonitor" -}}
{{- $monitor := get $v $name -}}
{{- if and $monitor.tlsConfig (not $v.secrets.adminTls.name) -}}
{{- $wrong = append $wrong (printf "%s.tlsConfig is set, and the API speaks no TLS: name a Secret with its certificate in secrets.adminTls.name" $name) -}}
{{- end -}}
{{- if gt (include "postdate.milliseconds" $monitor.scrapeTimeout | int64) (include "postdate.milliseconds" $monitor.interval | int64) -}}
{{- $wrong = append $wrong (printf "%s.scrapeTimeout is %s, longer than its interval of %s: Prometheus refuses that" $name $monitor.scrapeTimeout $monitor.interval) -}}
{{- end -}}
{{- end -}}
{{- if $v.networkPolicy.enabled -}}
{{- range $part := ternary (list "brokers") (list "redis" "brokers") $v.evaluationRedis.enabled -}}
{{- if not (get $v.networkPolicy.egress $part) -}}
{{- $wrong = append $wrong (printf "networkPolicy.egress.%s is empty: with networkPolicy.enabled the pods reach only what is named there, so nothing would run" $part) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $wrong = concat $wrong (include "postdate.validateScaling" . | fromYamlArray) -}}
{{- $wrong = concat $wrong (include "postdate.validatePods" . | fromYamlArray) -}}
{{- if and $v.check.connect (not $v.check.beforeChanges) -}}
{{- $wrong = append $wrong "check.connect goes with check.beforeChanges: it is that Job which connects" -}}
{{- end -}}
{{- if and $v.check.connect $v.evaluationRedis.enabled -}}
{{- $wrong = append $wrong "check.connect cannot go with evaluationRedis.enabled: the Job runs before that Redis is installed" -}}
{{- end -}}
{{- if $wrong -}}
{{- fail (printf "\n\nThese values cannot work:\n- %s\n" (join "\n- " $wrong)) -}}
{{- end -}}
{{- end -}}

{{/* What is wrong with keys of `config.admin`, as a list: for each the value that stands for it. */}}
{{- define "postdate.validateAdmin" -}}
{{- $wrong := list -}}
{{- $admin := .Values.config.admin -}}
{{- $instead := dict
  "listen" "use listenAddress; the port is 8025 in the pod, and service.port outside"
  "probe_listen" "use probePort"
  "tls" "put certificate and key into a Secret and name it in secrets.adminTls.name"
  "read_tokens" "put the tokens into a Secret and name it in secrets.readTokens.name"
  "read_tokens_file" "name the Secret in secrets.readTokens.name"
  "write_tokens" "put the tokens into a Secret and name it in secrets.writeTokens.name"
  "write_tokens_file" "name the Secret in secrets.writeTokens.name"
-}}
{{- if kindIs "map" $admin -}}
{{- range $key, $_ := $admin -}}
{{- $wrong = append $wrong (printf "config.admin.%s is the chart's to set: %s" $key (get $instead $key | default "the chart has no value for it")) -}}
{{- end -}}
{{- end -}}
{{- if and (hasKey .Values.config "admin") (not $wrong) -}}
{{- $wrong = append $wrong "config.admin is the chart's to set: leave it out" -}}
{{- end -}}
{{- $wrong | toYaml -}}
{{- end -}}

{{/* What is wrong with labels, names and addresses of pods and Service, as a list. */}}
{{- define "postdate.validatePods" -}}
{{- $v := .Values -}}
{{- $wrong := list -}}
{{- $ours := dict
  "commonLabels" (include "postdate.chartLabels" . | fromYaml)
  "podLabels" (include "postdate.selectorLabels" . | fromYaml)
-}}
{{- range $name, $labels := $ours -}}
{{- range $label, $_ := $labels -}}
{{- if hasKey (default dict (get $v $name)) $label -}}
{{- $wrong = append $wrong (printf "%s sets %s, which is the chart's to set" $name $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (eq $v.dnsPolicy "None") (not (default dict $v.dnsConfig).nameservers) -}}
{{- $wrong = append $wrong "dnsPolicy is None, so the pods would resolve no name: say which servers to ask in dnsConfig.nameservers" -}}
{{- end -}}
{{- if and (eq $v.service.ipFamilyPolicy "SingleStack") (gt (len $v.service.ipFamilies) 1) -}}
{{- $wrong = append $wrong "service.ipFamilyPolicy is SingleStack, and service.ipFamilies names two: one of the two must go, or the policy be PreferDualStack or RequireDualStack" -}}
{{- end -}}
{{- $wrong | toYaml -}}
{{- end -}}

{{/* What is wrong with what adds and removes pods, as a list. */}}
{{- define "postdate.validateScaling" -}}
{{- $v := .Values -}}
{{- $wrong := list -}}
{{- if and $v.autoscaling.enabled $v.keda.enabled -}}
{{- $wrong = append $wrong "autoscaling.enabled and keda.enabled are both true: KEDA makes an autoscaler of its own, so one of the two must go" -}}
{{- end -}}
{{- range $name := list "autoscaling" "keda" -}}
{{- $scaler := get $v $name -}}
{{- if gt (int $scaler.minReplicas) (int $scaler.maxReplicas) -}}
{{- $wrong = append $wrong (printf "%s.minReplicas is %d, more than its maxReplicas of %d" $name (int $scaler.minReplicas) (int $scaler.maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (not $v.autoscaling.metrics) (eq (int $v.autoscaling.targetCPUUtilizationPercentage) 0) -}}
{{- $wrong = append $wrong "autoscaling has nothing to go by: set autoscaling.targetCPUUtilizationPercentage or autoscaling.metrics" -}}
{{- end -}}
{{- if and $v.keda.enabled (not $v.keda.prometheusAddress) -}}
{{- $wrong = append $wrong "keda.prometheusAddress is empty: KEDA asks Prometheus for the lag and the lateness; say where it is, such as http://prometheus.monitoring:9090" -}}
{{- end -}}
{{- if contains "@" $v.keda.prometheusAddress -}}
{{- $wrong = append $wrong "keda.prometheusAddress holds a password: leave keda.enabled off, and write the ScaledObject with its TriggerAuthentication into extraObjects" -}}
{{- end -}}
{{- $wrong | toYaml -}}
{{- end -}}

{{/* What is wrong with where Redis is, as a list: a URL for one server, nodes for sentinels and a cluster. */}}
{{- define "postdate.validateRedis" -}}
{{- $redis := default dict .Values.config.redis -}}
{{- $secrets := .Values.secrets -}}
{{- $topology := toString (default "standalone" $redis.topology) -}}
{{- $nodes := $redis.nodes -}}
{{- $wrong := list -}}
{{- if not (has $topology (list "standalone" "sentinel" "cluster")) -}}
{{- $wrong = append $wrong (printf "config.redis.topology is %s: it is standalone, sentinel or cluster" $topology) -}}
{{- else if eq $topology "standalone" -}}
  {{- if and .Values.evaluationRedis.enabled (or $secrets.redis.name $redis.url $redis.url_file) -}}
  {{- $wrong = append $wrong "evaluationRedis.enabled and another Redis (config.redis.url or secrets.redis) are both set: one of the two must go" -}}
  {{- else if not (or .Values.evaluationRedis.enabled $secrets.redis.name $redis.url $redis.url_file) -}}
  {{- $wrong = append $wrong "it is not said where Redis is: name a Secret with its URL in secrets.redis.name, or set config.redis.url; for Sentinel or Cluster set config.redis.topology and config.redis.nodes" -}}
  {{- end -}}
  {{- if and $secrets.redis.name (or $redis.url $redis.url_file) -}}
  {{- $wrong = append $wrong "config.redis.url and secrets.redis.name are both set: one of the two must go" -}}
  {{- end -}}
  {{- if contains "@" (toString $redis.url) -}}
  {{- $wrong = append $wrong "config.redis.url holds a password: put the URL into a Secret and name it in secrets.redis.name" -}}
  {{- end -}}
  {{- range $key := list "nodes" "username" "password_file" "tls" -}}
  {{- if and (get $redis $key) (not (kindIs "map" (get $redis $key))) -}}
  {{- $wrong = append $wrong (printf "config.redis.%s goes with config.redis.topology sentinel or cluster; a standalone server has all of it in its URL" $key) -}}
  {{- end -}}
  {{- end -}}
  {{- if $secrets.redisPassword.name -}}
  {{- $wrong = append $wrong "secrets.redisPassword goes with config.redis.topology sentinel or cluster; a standalone server's password is in the URL that secrets.redis names" -}}
  {{- end -}}
{{- else -}}
  {{- if .Values.evaluationRedis.enabled -}}
  {{- $wrong = append $wrong (printf "evaluationRedis is a single server: it does not go with config.redis.topology %s" $topology) -}}
  {{- end -}}
  {{- if or $redis.url $redis.url_file -}}
  {{- $wrong = append $wrong (printf "config.redis.url is for a standalone server: with config.redis.topology %s config.redis.nodes says where it is" $topology) -}}
  {{- end -}}
  {{- if $secrets.redis.name -}}
  {{- $wrong = append $wrong (printf "secrets.redis holds the URL of a standalone server: with config.redis.topology %s config.redis.nodes says where it is, and secrets.redisPassword names the password" $topology) -}}
  {{- end -}}
  {{- if not $nodes -}}
  {{- $wrong = append $wrong (printf "config.redis.nodes is empty: name %s, each host:port" (ternary "the sentinels" "some nodes of the cluster" (eq $topology "sentinel"))) -}}
  {{- else if not (kindIs "slice" $nodes) -}}
  {{- $wrong = append $wrong "config.redis.nodes is not a list: write each host:port as an item" -}}
  {{- else -}}
    {{- range $nodes -}}
    {{- if or (contains "@" (toString .)) (contains "/" (toString .)) -}}
    {{- $wrong = append $wrong "config.redis.nodes holds a URL: a node is host:port; its user is config.redis.username, its password in secrets.redisPassword, TLS is config.redis.tls" -}}
    {{- else if not (regexMatch ":[0-9]+$" (toString .)) -}}
    {{- $wrong = append $wrong (printf "config.redis.nodes holds %s, which is not host:port" (toString .)) -}}
    {{- end -}}
    {{- end -}}
  {{- end -}}
  {{- if and $secrets.redisPassword.name $redis.password_file -}}
  {{- $wrong = append $wrong "config.redis.password_file and secrets.redisPassword.name are both set: one of the two must go" -}}
  {{- end -}}
{{- end -}}
{{- if $redis.password -}}
{{- $wrong = append $wrong "config.redis.password is a password: put it into a Secret and name it in secrets.redisPassword.name" -}}
{{- end -}}
{{- if $redis.sentinel_password -}}
{{- $wrong = append $wrong "config.redis.sentinel_password is a password: put it into a Secret and name it in secrets.sentinelPassword.name" -}}
{{- end -}}
{{- if eq $topology "sentinel" -}}
  {{- if not $redis.master -}}
  {{- $wrong = append $wrong "config.redis.master is empty: it is what the sentinels call the master" -}}
  {{- end -}}
  {{- if and $secrets.sentinelPassword.name $redis.sentinel_password_file -}}
  {{- $wrong = append $wrong "config.redis.sentinel_password_file and secrets.sentinelPassword.name are both set: one of the two must go" -}}
  {{- end -}}
{{- else -}}
  {{- range $key := list "master" "sentinel_username" "sentinel_password_file" -}}
  {{- if get $redis $key -}}
  {{- $wrong = append $wrong (printf "config.redis.%s goes with config.redis.topology sentinel" $key) -}}
  {{- end -}}
  {{- end -}}
  {{- if $secrets.sentinelPassword.name -}}
  {{- $wrong = append $wrong "secrets.sentinelPassword goes with config.redis.topology sentinel" -}}
  {{- end -}}
{{- end -}}
{{- uniq $wrong | toYaml -}}
{{- end -}}

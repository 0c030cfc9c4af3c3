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
{{- if hasKey $config "admin" -}}
{{- $wrong = append $wrong "config.admin is the chart's to set: tokens come from secrets.writeTokens and secrets.readTokens" -}}
{{- end -}}
{{- if hasKey $config "shutdown_timeout" -}}
{{- $wrong = append $wrong "config.shutdown_timeout is the chart's to set: use shutdownTimeoutSeconds, which terminationGracePeriodSeconds follows" -}}
{{- end -}}
{{- if not (or $v.secrets.redis.name $redis.url $redis.url_file) -}}
{{- $wrong = append $wrong "it is not said where Redis is: name a Secret with its URL in secrets.redis.name, or set config.redis.url" -}}
{{- end -}}
{{- if and $v.secrets.redis.name (or $redis.url $redis.url_file) -}}
{{- $wrong = append $wrong "config.redis.url and secrets.redis.name are both set: one of the two must go" -}}
{{- end -}}
{{- if contains "@" (toString $redis.url) -}}
{{- $wrong = append $wrong "config.redis.url holds a password: put the URL into a Secret and name it in secrets.redis.name" -}}
{{- end -}}
{{- range $name, $one := $config.rabbitmq -}}
{{- $one := default dict $one -}}
{{- if contains "@" (toString $one.url) -}}
{{- $wrong = append $wrong (printf "config.rabbitmq.%s.url holds a password: put the URL into a Secret and name it in secrets.rabbitmq.%s" $name $name) -}}
{{- else if and (hasKey $v.secrets.rabbitmq $name) (or $one.url $one.url_file) -}}
{{- $wrong = append $wrong (printf "config.rabbitmq.%s.url and secrets.rabbitmq.%s are both set: one of the two must go" $name $name) -}}
{{- end -}}
{{- end -}}
{{- range $name, $one := $config.kafka -}}
{{- $one := default dict $one -}}
{{- range $property, $_ := $one.properties -}}
{{- if regexMatch "password|secret|ssl\\.key\\.pem" $property -}}
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
{{- end -}}
{{- if $wrong -}}
{{- fail (printf "\n\nThese values cannot work:\n- %s\n" (join "\n- " $wrong)) -}}
{{- end -}}
{{- end -}}

{{/* What values.schema.json can't say about values that belong together, or could not say in words. */}}
{{- define "elasticjob.checks" -}}
{{- range $old, $new := dict "replicas" "replicaCount" "env" "extraEnv" "topologySpreadKeys" "topologySpreadConstraints" "verbose" "logging.level (debug for true)" }}
{{- if and (hasKey $.Values $old) (not (kindIs "invalid" (get $.Values $old))) }}
{{- fail (printf "%s is now %s: rename it in your values; with values that an upgrade reuses also --set %s=null" $old $new $old) }}
{{- end }}
{{- end }}
{{- range list "commonLabels" "podLabels" }}
{{- $values := . }}
{{- range $label, $_ := get $.Values . }}
{{- if has $label (list "helm.sh/chart" "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "app.kubernetes.io/version" "app.kubernetes.io/managed-by") }}
{{- fail (printf "%s has the label %s, which the chart sets itself: take another" $values $label) }}
{{- end }}
{{- end }}
{{- end }}
{{- range .Values.extraEnv }}
{{- if has .name (list "POD_NAME" "POD_NAMESPACE" "ELASTICJOB_HANDLER_IMAGE" "ELASTICJOB_HANDLER_IMAGE_PULL_POLICY" "ELASTICJOB_DEFAULT_TTL_SECONDS_AFTER_FINISHED" "ELASTICJOB_DEFAULT_ACTIVE_DEADLINE_SECONDS" "ELASTICJOB_DEFAULT_FAILURE_POLICY" "ELASTICJOB_DEFAULT_MEMORY_CHECKPOINTS" "ELASTICJOB_NAMESPACE_DEFAULTS") }}
{{- fail (printf "extraEnv has %s, which the chart sets itself: use its own value for that (handler.image, jobDefaults)" .name) }}
{{- end }}
{{- end }}
{{- if and .Values.metrics.port (eq (int .Values.metrics.port) (int .Values.probes.port)) }}
{{- fail (printf "metrics.port is %d, and so is probes.port: leave metrics.port empty to serve both on one port" (int .Values.metrics.port)) }}
{{- end }}
{{- if and .Values.metrics.serviceMonitor.enabled .Values.metrics.podMonitor.enabled }}
{{- fail "metrics.serviceMonitor.enabled and metrics.podMonitor.enabled are true: each pod would be scraped twice; choose one" }}
{{- end }}
{{- if and .Values.networkPolicy.metricsFrom (not .Values.metrics.enabled) }}
{{- fail "networkPolicy.metricsFrom is set, but metrics.enabled is false: there is no port to connect to; leave networkPolicy.metricsFrom empty" }}
{{- end }}
{{- if and .Values.networkPolicy.metricsFrom (not .Values.metrics.port) }}
{{- fail "networkPolicy.metricsFrom needs a port of its own for the metrics, because the kubelet must reach the probes: set metrics.port" }}
{{- end }}
{{- if and (or .Values.networkPolicy.metricsFrom .Values.networkPolicy.probesFrom) (not .Values.networkPolicy.enabled) }}
{{- fail "networkPolicy.metricsFrom or probesFrom is set, but networkPolicy.enabled is false: nothing would be limited; set it to true" }}
{{- end }}
{{- if eq .Values.serviceAccount.name "default" }}
{{- fail "serviceAccount.name is default, the account of every pod in the namespace that names none: they would all have the operator's rights; take another" }}
{{- end }}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) }}
{{- fail "serviceAccount.create is false and serviceAccount.name is empty: the operator's rights would be those of every pod in the namespace (its account `default`); name the account" }}
{{- end }}
{{- if hasSuffix "-elasticjob" .Values.serviceAccount.name }}
{{- fail (printf "serviceAccount.name is %s, which is the name of the service account of a job's pods (<job>-elasticjob): take another" .Values.serviceAccount.name) }}
{{- end }}
{{- with .Values.leaderElection }}
{{- if and (not .enabled) (gt (int $.Values.replicaCount) 1) }}
{{- fail (printf "replicaCount is %d, but without leaderElection.enabled there can be one operator only: set replicaCount to 1" (int $.Values.replicaCount)) }}
{{- end }}
{{- $lease := include "elasticjob.milliseconds" .leaseDuration | float64 }}
{{- $renew := include "elasticjob.milliseconds" .renewDeadline | float64 }}
{{- $retry := include "elasticjob.milliseconds" .retryPeriod | float64 }}
{{- if not (and (gt $lease $renew) (gt $renew $retry) (gt $retry 0.0)) }}
{{- fail (printf "leaderElection needs leaseDuration > renewDeadline > retryPeriod > 0, found %s, %s, %s" .leaseDuration .renewDeadline .retryPeriod) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "elasticjob.milliseconds" -}}
{{- if hasSuffix "ms" . -}}
{{- trimSuffix "ms" . -}}
{{- else if hasSuffix "s" . -}}
{{- mulf (trimSuffix "s" . | float64) 1000 -}}
{{- else -}}
{{- mulf (trimSuffix "m" . | float64) 60000 -}}
{{- end -}}
{{- end }}

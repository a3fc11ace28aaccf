{{/* Names, labels and the image. */}}

{{- define "elasticjob.name" -}}
{{- .Values.nameOverride | default .Chart.Name -}}
{{- end }}

{{/* Never `<job>-elasticjob`: so a job's own ServiceAccount, Role and RoleBinding are called, which the operator
writes by force, also over its own. */}}
{{- define "elasticjob.fullname" -}}
{{- $chart := include "elasticjob.name" . -}}
{{- $name := printf "%s-%s" .Release.Name $chart -}}
{{- if .Values.fullnameOverride -}}
{{- $name = .Values.fullnameOverride -}}
{{- else if contains $chart .Release.Name -}}
{{- $name = .Release.Name -}}
{{- end -}}
{{- $name = $name | trunc 50 | trimSuffix "-" -}}
{{- if hasSuffix "-elasticjob" $name -}}
{{- $name = printf "%s-operator" ($name | trunc 41 | trimSuffix "-") -}}
{{- end -}}
{{- $name -}}
{{- end }}

{{- define "elasticjob.selectorLabels" -}}
app.kubernetes.io/name: {{ include "elasticjob.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "elasticjob.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "elasticjob.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "elasticjob.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "elasticjob.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{/* An image: list with the name of its values, the values, and the root. */}}
{{- define "elasticjob.image" -}}
{{- $name := index . 0 -}}
{{- $image := index . 1 -}}
{{- $root := index . 2 -}}
{{- if not $image.repository }}
{{- fail (printf "%s.repository is empty, and no image is published yet: build the image and push it (docs/operate/install.md#images), then name it with --set %s.repository=REGISTRY/elasticjob-%s" $name $name (eq $name "image" | ternary "operator" "handler")) }}
{{- end -}}
{{- $registry := ($root.Values.global).imageRegistry | default $image.registry -}}
{{- $first := splitList "/" $image.repository | first -}}
{{- if and $registry (contains "/" $image.repository) (regexMatch "[.:]|^localhost$" $first) }}
{{- fail (printf "%s.repository begins with the registry %s, and %s is set as its registry, too: leave one of them out" $name $first $registry) }}
{{- end -}}
{{- $repository := empty $registry | ternary $image.repository (printf "%s/%s" (trimSuffix "/" $registry) $image.repository) -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository ($image.tag | default $root.Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{/* The subjects of every binding. */}}
{{- define "elasticjob.subjects" -}}
- kind: ServiceAccount
  name: {{ include "elasticjob.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}

{{/* What the operator's pods may reach, and that of `helm test`. */}}
{{- define "elasticjob.egress" -}}
- ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
- ports: # the API server, whose address no selector knows
    {{- range .Values.networkPolicy.apiServerPorts }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
{{- with .Values.networkPolicy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end }}

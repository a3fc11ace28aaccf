{{/* Names, labels and the image. */}}

{{/* Never `<job>-elasticjob`: so a job's own ServiceAccount, Role and RoleBinding are called, which the operator
writes by force, also over its own. */}}
{{- define "elasticjob.fullname" -}}
{{- $name := printf "%s-%s" .Release.Name .Chart.Name -}}
{{- if .Values.fullnameOverride -}}
{{- $name = .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- $name = .Release.Name -}}
{{- end -}}
{{- $name = $name | trunc 50 | trimSuffix "-" -}}
{{- if hasSuffix "-elasticjob" $name -}}
{{- $name = printf "%s-operator" ($name | trunc 41 | trimSuffix "-") -}}
{{- end -}}
{{- $name -}}
{{- end }}

{{- define "elasticjob.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
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

{{/* An image: list with the values of one (repository, tag, digest) and the chart's version. */}}
{{- define "elasticjob.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default (index . 1)) -}}
{{- end -}}
{{- end }}

{{/* The subjects of every binding. */}}
{{- define "elasticjob.subjects" -}}
- kind: ServiceAccount
  name: {{ include "elasticjob.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}

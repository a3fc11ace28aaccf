{{/*
The job that `helm test` trains, in a namespace that the operator serves. Its pods meet the Pod Security Standard
"restricted", which may be enforced there.
*/}}
{{- define "elasticjob.testName" -}}
{{- printf "%s-test" (include "elasticjob.fullname" . | trunc 40 | trimSuffix "-") -}}
{{- end }}

{{- define "elasticjob.testNamespace" -}}
{{- $served := .Values.watchNamespaces | default (list .Release.Namespace) -}}
{{- has .Release.Namespace $served | ternary .Release.Namespace (first $served) -}}
{{- end }}

{{- define "elasticjob.testLabels" -}}
{{- /* The component tells these pods from the operator's, for Services, budgets and policies. */ -}}
{{- toYaml (set (include "elasticjob.labels" . | fromYaml) "app.kubernetes.io/component" "test") -}}
{{- end }}

{{- define "elasticjob.testHook" -}}
helm.sh/hook: test
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{- define "elasticjob.testScript" -}}
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel


@record
def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(100):
        x = torch.randn(64, 1)
        loss = torch.nn.functional.mse_loss(model(x), 3 * x + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.01, f"the loss is {loss.item()}"
    dist.destroy_process_group()


main()
{{- end }}

{{- define "elasticjob.testJob" -}}
{{- $own := get (.Values.limits.namespaces | default dict) (include "elasticjob.testNamespace" .) | default dict -}}
apiVersion: elasticjob.dev/v1alpha1
kind: ElasticJob
metadata:
  name: {{ include "elasticjob.testName" . }}
  namespace: {{ include "elasticjob.testNamespace" . }}
  labels:
    {{- include "elasticjob.testLabels" . | nindent 4 }}
spec:
  replicas: {{ min 2 ($own.maxReplicas | default .Values.limits.maxReplicas | default 2) }}
  failurePolicy:
    application: {maxRestarts: 0}
  # In case that its test is interrupted.
  activeDeadlineSeconds: {{ .Values.tests.timeoutSeconds }}
  ttlSecondsAfterFinished: 3600
  template:
    spec:
      {{- with .Values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.tests.podSecurityContext }}
      securityContext:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: train
          image: {{ .Values.tests.image | quote }}
          command: [torchrun, --no-python, python, -c, {{ include "elasticjob.testScript" . | quote }}]
          env:
            # The user has no name in the image: torch asks for one.
            - {name: USER, value: elasticjob}
            - {name: HOME, value: /tmp}
          {{- with .Values.tests.resources }}
          resources:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          securityContext:
            allowPrivilegeEscalation: false
            capabilities: {drop: [ALL]}
{{- end }}

{{/*
What the operator does in the namespaces that it serves, verb by verb.

It grants rights, to the pods of jobs, and Kubernetes lets no client grant rights that it does not have: get, list, watch,
create and patch on Leases must stay here whatever the operator itself does with them. A server-side apply that
makes the object needs create as well as patch.
*/}}
{{- define "elasticjob.operatorRules" -}}
- apiGroups: [elasticjob.dev]
  resources: [elasticjobs]
  verbs: [get, list, watch, delete] # delete: ttlSecondsAfterFinished
- apiGroups: [elasticjob.dev]
  resources: [elasticjobs/status]
  verbs: [patch]
{{- if .Values.rbac.ownerReferencesPermissionEnforcement }}
- apiGroups: [elasticjob.dev]
  resources: [elasticjobs/finalizers]
  verbs: [update]
{{- end }}
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch] # the condition of pods with the readiness gate elasticjob.dev/member
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [list, watch, create, patch]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [list, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [list, create, patch, delete] # delete: networkPolicy was set to None
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates]
  verbs: [get] # one worker for each GPU of a claim
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- if .Values.kueue.enabled }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch]
{{- end }}
{{- if .Values.gangScheduling.kubernetes }}
- apiGroups: [scheduling.k8s.io]
  resources: [podgroups]
  verbs: [list, create, patch, delete] # delete: in Kubernetes 1.36 they cannot be changed
{{- end }}
{{- if .Values.gangScheduling.coscheduling }}
- apiGroups: [scheduling.x-k8s.io]
  resources: [podgroups]
  verbs: [list, create, patch]
{{- end }}
{{- if .Values.gangScheduling.volcano }}
- apiGroups: [scheduling.volcano.sh]
  resources: [podgroups]
  verbs: [list, create, patch]
{{- end }}
{{- end }}

{{/* What selects the operator's pods. */}}
{{- define "muster.selector" -}}
app.kubernetes.io/name: muster
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Labels of every object of the chart. */}}
{{- define "muster.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "muster.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* CEL: whether the operator's account asks. */}}
{{- define "muster.byOperator" -}}
request.userInfo.username == 'system:serviceaccount:{{ .Release.Namespace }}:{{ .Values.serviceAccount.name }}'
{{- end }}

{{/* A validation: not in these namespaces. The operator proves the fence by dry runs in its own. */}}
{{- define "muster.notHere" -}}
- expression: >-
    request.namespace != 'kube-system'
    && (request.namespace != '{{ .Release.Namespace }}' || request.?dryRun.orValue(false))
  messageExpression: "'Muster runs nothing in namespace ' + request.namespace + ': use another'"
  message: "Muster runs nothing in this namespace: use another"
  reason: Forbidden
{{- end }}

{{- define "omni-operator.name" -}}
{{- if contains "omni-operator" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-omni-operator" (.Release.Name | trunc 40 | trimSuffix "-") }}{{ end }}
{{- end }}

{{- define "omni-operator.labels" -}}
{{ include "omni-operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "omni-operator.selector" -}}
app.kubernetes.io/name: omni-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "shoal.name" -}}
{{ .Release.Name | trunc 53 | trimSuffix "-" }}
{{- end }}

{{- define "shoal.selector" -}}
app.kubernetes.io/name: shoal
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "shoal.labels" -}}
{{ include "shoal.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* Slabs of the processes that answer requests, of which one handles what the lanes hand over, and 64 MiB for rings. */ -}}
{{- define "shoal.sharedMemoryMib" -}}
{{ add (mul (add .Values.httpProcesses .Values.grpcProcesses 1) .Values.slabMib) 64 }}
{{- end }}

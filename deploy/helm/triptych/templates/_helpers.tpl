{{- define "triptych.name" -}}
{{- printf "%s-triptych" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "triptych.labels" -}}
app.kubernetes.io/name: triptych
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* Of the pods of this release; with a component, of one kind of them. */}}
{{- define "triptych.selector" -}}
app.kubernetes.io/name: triptych
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "triptych.masters" -}}
{{- $name := include "triptych.name" . -}}
{{- $port := int .Values.master.port -}}
{{- $urls := list -}}
{{- range $i := until (int .Values.master.replicas) -}}
{{- $urls = append $urls (printf "http://%s-master-%d.%s-master:%d" $name $i $name $port) -}}
{{- end -}}
{{- join "," $urls -}}
{{- end -}}

{{/* A key of the secret as a variable. */}}
{{- define "triptych.key" -}}
- name: {{ .variable }}
  valueFrom: { secretKeyRef: { name: {{ .secret }}, key: {{ .key }} } }
{{- end -}}

{{/* What all pods share. */}}
{{- define "triptych.pod" -}}
terminationGracePeriodSeconds: {{ add .Values.drainDelay .Values.shutdownTimeout 10 }}
securityContext: { runAsNonRoot: true, runAsUser: 10001, fsGroup: 10001, seccompProfile: { type: RuntimeDefault } }
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What all containers share: where they listen, how they end, and the probes. A container that is
told to stop does all itself: /ready says so first. `sleep` only keeps SIGTERM away until the
endpoint has been taken out of the services. */}}
{{- define "triptych.container" -}}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: [ALL] } }
lifecycle: { preStop: { exec: { command: [sleep, "2"] } } }
readinessProbe: { httpGet: { path: /ready, port: http }, periodSeconds: 2, timeoutSeconds: 2, failureThreshold: 2 }
{{- end -}}

{{- define "triptych.environment" -}}
- { name: POD_IP, valueFrom: { fieldRef: { fieldPath: status.podIP } } }
- { name: TRIPTYCH_HOST, value: {{ .host | default "0.0.0.0" | quote }} }
- { name: TRIPTYCH_DRAIN_DELAY, value: {{ .Values.drainDelay | quote }} }
- { name: TRIPTYCH_SHUTDOWN_TIMEOUT, value: {{ .Values.shutdownTimeout | quote }} }
- { name: TRIPTYCH_LOG_FORMAT, value: json }
{{ include "triptych.key" (dict "variable" "TRIPTYCH_FLEET_KEY" "secret" .Values.keys.secret "key" "fleet-key") }}
{{- end -}}

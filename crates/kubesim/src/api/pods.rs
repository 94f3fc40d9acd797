//! What the server does to pods: defaults, built-in admission, and what may change later.

use serde_json::{Value, json};

use super::json::{at, list, set, set_default, text};
use super::server::State;
use super::status::{ApiError, FieldError};

/// Seconds that the DefaultTolerationSeconds plugin grants on a not-ready or unreachable node.
const TOLERATION_SECONDS: i64 = 300;

/// Defaults of a pod and of its containers.
pub(crate) fn defaults(pod: &mut Value) {
    let spec = |key: &'static str| ["spec", key];
    set_default(pod, &spec("restartPolicy"), "Always");
    set_default(pod, &spec("terminationGracePeriodSeconds"), 30);
    set_default(pod, &spec("dnsPolicy"), "ClusterFirst");
    set_default(pod, &spec("schedulerName"), "default-scheduler");
    set_default(pod, &spec("securityContext"), json!({}));
    set_default(pod, &spec("enableServiceLinks"), true);
    for field in ["containers", "initContainers"] {
        if let Some(items) = pod["spec"].get_mut(field).and_then(Value::as_array_mut) {
            items.iter_mut().for_each(container_defaults);
        }
    }
    if let Some(volumes) = pod["spec"].get_mut("volumes").and_then(Value::as_array_mut) {
        for volume in volumes {
            for source in ["configMap", "secret", "projected", "downwardAPI"] {
                if volume.get(source).is_some() {
                    set_default(volume, &[source, "defaultMode"], 420);
                }
            }
        }
    }
    if let Some(tolerations) = pod["spec"].get("tolerations").and_then(Value::as_array)
        && tolerations.is_empty()
    {
        super::json::remove(pod, &["spec", "tolerations"]);
    }
}

fn container_defaults(container: &mut Value) {
    set_default(container, &["terminationMessagePath"], "/dev/termination-log");
    set_default(container, &["terminationMessagePolicy"], "File");
    set_default(container, &["resources"], json!({}));
    let image = text(container, &["image"]);
    let tag = image.rsplit('/').next().and_then(|last| last.split_once(':')).map(|(_, tag)| tag);
    let policy =
        if tag.is_none_or(|t| t == "latest") && !image.contains('@') { "Always" } else { "IfNotPresent" };
    set_default(container, &["imagePullPolicy"], policy);
    if let Some(ports) = container.get_mut("ports").and_then(Value::as_array_mut) {
        for port in ports {
            set_default(port, &["protocol"], "TCP");
        }
    }
    // A limit without a request is a request.
    let limits = at(container, &["resources", "limits"]).and_then(Value::as_object).cloned();
    for (name, amount) in limits.into_iter().flatten() {
        set_default(container, &["resources", "requests", &name], amount);
    }
    for field in ["env"] {
        if let Some(items) = container.get_mut(field).and_then(Value::as_array_mut) {
            for item in items {
                if at(item, &["valueFrom", "fieldRef"]).is_some() {
                    set_default(item, &["valueFrom", "fieldRef", "apiVersion"], "v1");
                }
            }
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if container.get(probe).is_some() {
            for (key, value) in [
                ("timeoutSeconds", 1),
                ("periodSeconds", 10),
                ("successThreshold", 1),
                ("failureThreshold", 3),
            ] {
                set_default(container, &[probe, key], value);
            }
            if at(container, &[probe, "httpGet"]).is_some() {
                set_default(container, &[probe, "httpGet", "path"], "/");
                set_default(container, &[probe, "httpGet", "scheme"], "HTTP");
            }
        }
    }
}

/// The quality-of-service class, from cpu and memory of all containers.
fn qos_class(pod: &Value) -> &'static str {
    let (mut any, mut guaranteed) = (false, true);
    let containers = list(pod, &["spec", "containers"]).iter().chain(list(pod, &["spec", "initContainers"]));
    for container in containers {
        for resource in ["cpu", "memory"] {
            let request = at(container, &["resources", "requests", resource]);
            let limit = at(container, &["resources", "limits", resource]);
            any |= request.is_some() || limit.is_some();
            let amount = |v: Option<&Value>| v.and_then(Value::as_str).and_then(super::quantity::parse);
            guaranteed &= limit.is_some() && amount(request) == amount(limit);
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// The status of a new pod.
pub(crate) fn initial_status(pod: &mut Value) {
    let class = qos_class(pod);
    let mut status = json!({"phase": "Pending", "qosClass": class});
    if !list(pod, &["spec", "schedulingGates"]).is_empty() {
        status["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates", "lastProbeTime": null, "lastTransitionTime": null,
        }]);
    }
    pod["status"] = status;
}

/// The DefaultTolerationSeconds plugin.
pub(crate) fn add_tolerations(pod: &mut Value) {
    let mut tolerations = list(pod, &["spec", "tolerations"]).to_vec();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerated = tolerations.iter().any(|t| {
            let key_fits = text(t, &["key"]) == key || text(t, &["key"]).is_empty();
            key_fits && matches!(text(t, &["effect"]), "" | "NoExecute")
        });
        if !tolerated {
            tolerations.push(json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_SECONDS,
            }));
        }
    }
    set(pod, &["spec", "tolerations"], tolerations);
}

impl State {
    /// The built-in mutating admission of pods: priority, tolerations, service account, RuntimeClass.
    pub fn admit_pod(&mut self, pod: &mut Value, name: &str) -> Result<(), ApiError> {
        let class = text(pod, &["spec", "priorityClassName"]).to_owned();
        let (priority, policy) = if class.is_empty() {
            self.default_priority(pod)
        } else {
            let Some(found) = self.store.get("priorityclasses.scheduling.k8s.io", "", &class) else {
                let why = format!("no PriorityClass with name {class} was found");
                return Err(ApiError::forbidden("", "pods", name, &why));
            };
            priority_of(found)
        };
        if let Some(given) = at(pod, &["spec", "priority"]).and_then(Value::as_i64)
            && given != priority
        {
            let why = format!(
                "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
            );
            return Err(ApiError::forbidden("", "pods", name, &why));
        }
        set(pod, &["spec", "priority"], priority);
        set_default(pod, &["spec", "preemptionPolicy"], policy);
        add_tolerations(pod);
        set_default(pod, &["spec", "serviceAccountName"], "default");
        let account = pod["spec"]["serviceAccountName"].clone();
        set(pod, &["spec", "serviceAccount"], account);
        self.admit_runtime_class(pod, name)?;
        self.check_limits(pod, name)
    }

    fn default_priority(&self, pod: &mut Value) -> (i64, String) {
        let classes = self.store.table("priorityclasses.scheduling.k8s.io");
        let default = classes
            .into_iter()
            .flat_map(|t| t.scan(""))
            .filter(|(_, c)| c["globalDefault"] == true)
            .min_by_key(|(_, c)| c["value"].as_i64().unwrap_or(0));
        match default {
            Some((key, class)) => {
                set(pod, &["spec", "priorityClassName"], key.1.clone());
                priority_of(class)
            }
            None => (0, "PreemptLowerPriority".to_owned()),
        }
    }
}

fn priority_of(class: &Value) -> (i64, String) {
    let policy = match text(class, &["preemptionPolicy"]) {
        "" => "PreemptLowerPriority",
        policy => policy,
    };
    (class["value"].as_i64().unwrap_or(0), policy.to_owned())
}

/// What a pod must have.
pub(crate) fn validate(pod: &Value, findings: &mut Vec<FieldError>) {
    let containers = list(pod, &["spec", "containers"]);
    if containers.is_empty() {
        findings.push(FieldError::required("spec.containers", ""));
    }
    let mut names: Vec<&str> = Vec::new();
    for (field, i, container) in containers.iter().enumerate().map(|(i, c)| ("containers", i, c)).chain(
        list(pod, &["spec", "initContainers"]).iter().enumerate().map(|(i, c)| ("initContainers", i, c)),
    ) {
        let path = format!("spec.{field}[{i}]");
        let name = text(container, &["name"]);
        if name.is_empty() {
            findings.push(FieldError::required(format!("{path}.name"), ""));
        } else if names.contains(&name) {
            findings.push(FieldError::duplicate(format!("{path}.name"), &json!(name)));
        }
        names.push(name);
        if text(container, &["image"]).is_empty() {
            findings.push(FieldError::required(format!("{path}.image"), ""));
        }
        check_resources(container, &path, findings);
    }
    let policy = &pod["spec"]["restartPolicy"];
    if !matches!(policy.as_str(), Some("Always" | "OnFailure" | "Never")) {
        let allowed = ["Always", "OnFailure", "Never"].map(str::to_owned);
        findings.push(FieldError::not_supported("spec.restartPolicy", policy, &allowed));
    }
    if !list(pod, &["spec", "schedulingGates"]).is_empty() && !text(pod, &["spec", "nodeName"]).is_empty() {
        findings.push(FieldError::forbidden(
            "spec.nodeName",
            "cannot be set until all schedulingGates have been cleared",
        ));
    }
}

fn check_resources(container: &Value, path: &str, findings: &mut Vec<FieldError>) {
    let amount = |kind: &str, name: &str| {
        at(container, &["resources", kind, name]).and_then(Value::as_str).and_then(super::quantity::parse)
    };
    let requests = at(container, &["resources", "requests"]).and_then(Value::as_object);
    for name in requests.into_iter().flatten().map(|(k, _)| k) {
        let shown = &container["resources"]["requests"][name.as_str()];
        let limit = amount("limits", name);
        let extended = name.contains('/');
        if let (Some(request), Some(limit)) = (amount("requests", name), limit) {
            if extended && request != limit {
                let detail = format!(
                    "must be equal to {name} limit of {}",
                    text(container, &["resources", "limits", name])
                );
                findings.push(FieldError::invalid(format!("{path}.resources.requests"), shown, &detail));
            } else if request > limit {
                let detail = format!(
                    "must be less than or equal to {name} limit of {}",
                    text(container, &["resources", "limits", name])
                );
                findings.push(FieldError::invalid(format!("{path}.resources.requests"), shown, &detail));
            }
        } else if extended && limit.is_none() {
            let detail = "Limit must be set for non overcommitable resources";
            findings.push(FieldError::required(format!("{path}.resources.limits"), detail));
        }
    }
}

/// Refuses changes of the spec beyond what the API allows.
pub(crate) fn validate_update(old: &Value, new: &Value, findings: &mut Vec<FieldError>) {
    let mut masked = new["spec"].clone();
    for field in ["containers", "initContainers"] {
        let before = list(old, &["spec", field]);
        if let Some(items) = masked.get_mut(field).and_then(Value::as_array_mut)
            && items.len() == before.len()
        {
            for (item, was) in items.iter_mut().zip(before) {
                super::json::copy_field(was, item, "image");
                // Defaulted from the image at creation; the server compares it as it was.
                if text(item, &["imagePullPolicy"]).is_empty() {
                    super::json::copy_field(was, item, "imagePullPolicy");
                }
            }
        }
    }
    for field in ["activeDeadlineSeconds", "terminationGracePeriodSeconds"] {
        let negative =
            field == "terminationGracePeriodSeconds" && old["spec"][field].as_i64().is_none_or(|s| s >= 0);
        if !negative {
            super::json::copy_field(&old["spec"], &mut masked, field);
        }
    }
    let before = list(old, &["spec", "tolerations"]);
    let after = list(new, &["spec", "tolerations"]);
    let kept = before.iter().all(|t| after.iter().any(|n| same_toleration(t, n)));
    if kept {
        super::json::copy_field(&old["spec"], &mut masked, "tolerations");
    } else {
        findings.push(FieldError::forbidden(
            "spec.tolerations",
            "existing toleration can not be modified except its tolerationSeconds",
        ));
        super::json::copy_field(&old["spec"], &mut masked, "tolerations");
    }
    let gates = list(old, &["spec", "schedulingGates"]);
    if list(new, &["spec", "schedulingGates"]).iter().all(|g| gates.contains(g)) {
        super::json::copy_field(&old["spec"], &mut masked, "schedulingGates");
        if !gates.is_empty() {
            // A gated pod may still be steered.
            for field in ["nodeSelector", "affinity"] {
                super::json::copy_field(&old["spec"], &mut masked, field);
            }
        }
    }
    if masked != old["spec"] {
        let detail = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,\
                      `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
                      `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
        findings.push(FieldError::forbidden("spec", detail));
    }
}

fn same_toleration(a: &Value, b: &Value) -> bool {
    ["key", "operator", "value", "effect"].iter().all(|k| text(a, &[k]) == text(b, &[k]))
}

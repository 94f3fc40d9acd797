//! Validating admission: which policies concern a request, and what they say.
//!
//! ```text
//! Attributes ─► bindings × policies that match ─► parameters ─► CEL ─► first denial, if any
//! ```

use std::sync::Arc;

use cel::Value as Cel;
use serde_json::{Value, json};

use super::json::{at, list, remove, text};
use super::policy::{Evaluation, Policy};
use super::request::Call;
use super::resources::Resource;
use super::selector::LabelSelector;
use super::server::State;
use super::status::ApiError;

/// The operation as admission sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// One request as admission sees it.
#[derive(Debug)]
pub(crate) struct Attributes<'a> {
    pub call: &'a Call,
    pub resource: &'a Resource,
    pub operation: Operation,
    pub object: Option<&'a Value>,
    pub old: Option<&'a Value>,
}

impl<'a> Attributes<'a> {
    pub fn new(
        call: &'a Call,
        resource: &'a Resource,
        operation: Operation,
        object: Option<&'a Value>,
        old: Option<&'a Value>,
    ) -> Self {
        Self { call, resource, operation, object, old }
    }

    /// Name of the object, or its prefix if the server is to choose the rest.
    fn name(&self) -> &str {
        let any = self.object.or(self.old).unwrap_or(&Value::Null);
        match text(any, &["metadata", "name"]) {
            "" => text(any, &["metadata", "generateName"]),
            name => name,
        }
    }

    fn subresource(&self) -> &str {
        &self.call.info.subresource
    }

    /// Who asks; what is empty is left out, as Go does.
    fn user(&self) -> Value {
        let i = &self.call.info;
        let mut groups = Vec::new();
        if let Some((namespace, _)) =
            i.user.strip_prefix("system:serviceaccount:").and_then(|account| account.split_once(':'))
        {
            groups.push("system:serviceaccounts".to_owned());
            groups.push(format!("system:serviceaccounts:{namespace}"));
        }
        groups.push("system:authenticated".to_owned());
        let mut user = json!({"username": i.user, "groups": groups});
        if !i.extra.is_empty() {
            user["extra"] = json!(i.extra);
        }
        user
    }

    /// The `request` variable of policies.
    pub fn request(&self) -> Value {
        let (r, i) = (self.resource, &self.call.info);
        let mut request = json!({
            "uid": "",
            "kind": {"group": r.group, "version": r.version, "kind": r.kind},
            "resource": {"group": r.group, "version": r.version, "resource": r.plural},
            "subResource": i.subresource,
            "requestKind": {"group": r.group, "version": r.version, "kind": r.kind},
            "requestResource": {"group": r.group, "version": r.version, "resource": r.plural},
            "requestSubResource": i.subresource,
            "name": self.name(),
            "namespace": i.namespace,
            "operation": self.operation.as_str(),
            "userInfo": self.user(),
            "dryRun": i.dry_run,
            "options": {},
        });
        // Go leaves these out where they are empty, so that naming them is an error of the policy.
        for key in ["subResource", "requestSubResource", "name", "namespace"] {
            if text(&request, &[key]).is_empty() {
                remove(&mut request, &[key]);
            }
        }
        request
    }
}

impl State {
    /// Runs the policies that concern a request; the first denial is its answer.
    pub fn validate_admission(&mut self, attributes: &Attributes<'_>) -> Result<(), ApiError> {
        // Policies do not judge changes of policies (a real server would lock itself out).
        if attributes.resource.group == "admissionregistration.k8s.io" {
            return Ok(());
        }
        let pairs = self.policies.pairs(&self.store);
        let mut evaluation: Option<Evaluation> = None;
        for (policy, binding) in pairs.iter() {
            if !self.concerns(&policy.constraints, attributes) {
                continue;
            }
            let own = at(binding, &["spec", "matchResources"]);
            if own.is_some_and(|rules| !self.concerns(rules, attributes)) {
                continue;
            }
            let actions = list(binding, &["spec", "validationActions"]);
            if !actions.is_empty() && !actions.iter().any(|a| a == "Deny") {
                continue;
            }
            let namespace = self.store.get("namespaces", "", &attributes.call.info.namespace);
            let evaluation =
                evaluation.get_or_insert_with(|| Evaluation::new(attributes, namespace.map(Arc::as_ref)));
            self.judge(policy, binding, attributes, evaluation)?;
        }
        Ok(())
    }

    fn judge(
        &self,
        policy: &Policy,
        binding: &Value,
        attributes: &Attributes<'_>,
        evaluation: &Evaluation,
    ) -> Result<(), ApiError> {
        let denial = |why: &str, reason: &str| {
            let message = format!(
                "ValidatingAdmissionPolicy '{}' with binding '{}' denied request: {why}",
                policy.name,
                text(binding, &["metadata", "name"])
            );
            deny(attributes, &message, reason)
        };
        let params = match self.params(policy, binding, attributes) {
            Ok(params) => params,
            Err(_) if !policy.fails_closed => return Ok(()),
            Err(why) => return Err(denial(&format!("failed to configure binding: {why}"), "")),
        };
        for params in params {
            if let Some((why, reason)) = policy.violation(evaluation, params.as_deref()) {
                return Err(denial(&why, &reason));
            }
        }
        Ok(())
    }

    /// The parameters to evaluate with: one `None` for a policy without, none at all to skip it.
    fn params(
        &self,
        policy: &Policy,
        binding: &Value,
        attributes: &Attributes<'_>,
    ) -> Result<Vec<Option<Arc<Value>>>, String> {
        let Some(kind) = &policy.param_kind else { return Ok(vec![None]) };
        let Some(reference) = at(binding, &["spec", "paramRef"]) else { return Ok(vec![None]) };
        let (version, kind) = (text(kind, &["apiVersion"]), text(kind, &["kind"]));
        let resource = self.catalogue.find_kind(version, kind).ok_or_else(|| {
            format!("failed to find resource referenced by paramKind: '{version}, Kind={kind}'")
        })?;
        let namespace = match (resource.namespaced, text(reference, &["namespace"])) {
            (false, _) => "",
            (true, "") => attributes.call.info.namespace.as_str(),
            (true, given) => given,
        };
        let name = text(reference, &["name"]);
        let found: Vec<Option<Arc<Value>>> = if name.is_empty() {
            let selector = LabelSelector::from_object(reference.get("selector").unwrap_or(&Value::Null));
            let table = self.store.table(&resource.table);
            table
                .into_iter()
                .flat_map(|t| t.scan(namespace))
                .filter(|(_, o)| selector.matches(o))
                .map(|(_, o)| Some(o.clone()))
                .collect()
        } else {
            self.store.get(&resource.table, namespace, name).map(|o| Some(o.clone())).into_iter().collect()
        };
        if found.is_empty() && text(reference, &["parameterNotFoundAction"]) != "Allow" {
            return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
        }
        Ok(found)
    }

    /// Whether match rules (of a policy or of a binding) select a request.
    fn concerns(&self, rules: &Value, attributes: &Attributes<'_>) -> bool {
        let excluded = list(rules, &["excludeResourceRules"]).iter().any(|r| rule_matches(r, attributes));
        let wanted = list(rules, &["resourceRules"]);
        let included = wanted.is_empty() && rules.get("resourceRules").is_none()
            || wanted.iter().any(|r| rule_matches(r, attributes));
        if excluded || !included {
            return false;
        }
        let object_fits = rules.get("objectSelector").is_none_or(|selector| {
            let selector = LabelSelector::from_object(selector);
            let fits = |o: Option<&Value>| o.is_some_and(|o| selector.matches(o));
            selector.is_empty() || fits(attributes.object) || fits(attributes.old)
        });
        object_fits && self.namespace_fits(rules.get("namespaceSelector"), attributes)
    }

    fn namespace_fits(&self, selector: Option<&Value>, attributes: &Attributes<'_>) -> bool {
        let Some(selector) = selector.map(LabelSelector::from_object).filter(|s| !s.is_empty()) else {
            return true;
        };
        if attributes.resource.is("", "namespaces") {
            return attributes.object.or(attributes.old).is_some_and(|n| selector.matches(n));
        }
        if !attributes.resource.namespaced {
            return true;
        }
        let namespace = self.store.get("namespaces", "", &attributes.call.info.namespace);
        namespace.is_some_and(|n| selector.matches(n))
    }
}

fn rule_matches(rule: &Value, attributes: &Attributes<'_>) -> bool {
    let r = attributes.resource;
    let has = |key: &str, value: &str| list(rule, &[key]).iter().any(|v| v == "*" || v == value);
    let names = list(rule, &["resourceNames"]);
    let scope = match text(rule, &["scope"]) {
        "Namespaced" => r.namespaced,
        "Cluster" => !r.namespaced,
        _ => true,
    };
    let resource_fits = list(rule, &["resources"]).iter().filter_map(Value::as_str).any(|pattern| {
        let (resource, sub) = pattern.split_once('/').unwrap_or((pattern, ""));
        let resource_fits = resource == "*" || resource == r.plural;
        // `*` alone means every resource without its subresources, `*/*` everything.
        resource_fits && (sub == "*" || sub == attributes.subresource())
    });
    has("apiGroups", &r.group)
        && has("apiVersions", &r.version)
        && has("operations", attributes.operation.as_str())
        && resource_fits
        && scope
        && (names.is_empty() || names.iter().any(|n| n == attributes.name()))
}

/// The error of a denial: a Forbidden's message with the reason's code.
fn deny(attributes: &Attributes<'_>, message: &str, reason: &str) -> ApiError {
    let r = attributes.resource;
    let name = if attributes.name().is_empty() { "Unknown" } else { attributes.name() };
    let mut error = ApiError::forbidden(&r.group, &r.plural, name, message)
        .with_causes(vec![json!({"message": message})]);
    let (reason, code) = match reason {
        "Unauthorized" => ("Unauthorized", 401),
        "Forbidden" => ("Forbidden", 403),
        "RequestEntityTooLarge" => ("RequestEntityTooLarge", 413),
        _ => ("Invalid", 422),
    };
    reason.clone_into(&mut error.reason);
    error.code = code;
    error
}

/// A CEL result as a message: strings only.
pub(crate) fn as_text(value: &Cel) -> Option<String> {
    match value {
        Cel::String(s) if !s.trim().is_empty() => Some(s.trim().to_owned()),
        _ => None,
    }
}

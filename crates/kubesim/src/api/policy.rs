//! ValidatingAdmissionPolicies, compiled once and kept until one changes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use cel::common::value::{CowVal, Val};
use cel::context::VariableResolver;
use cel::{Context, Program, Value as Cel};
use serde_json::Value;

use super::admission::{Attributes, as_text};
use super::cel_eval::{compile, context, evaluate, to_cel};
use super::json::{at, list, text};
use super::store::Store;

type Compiled = Result<Arc<Program>, String>;

#[derive(Debug)]
struct Validation {
    expression: String,
    program: Compiled,
    message: String,
    message_program: Option<Arc<Program>>,
    reason: String,
}

/// One policy, ready to be evaluated.
#[derive(Debug)]
pub(crate) struct Policy {
    pub name: String,
    pub constraints: Value,
    pub param_kind: Option<Value>,
    /// `failurePolicy: Fail`: an error denies.
    pub fails_closed: bool,
    conditions: Vec<(String, Compiled)>,
    variables: Vec<(String, Compiled)>,
    validations: Vec<Validation>,
}

/// A policy with one of its bindings.
pub(crate) type Pair = (Arc<Policy>, Arc<Value>);

/// The policies in force with their bindings, compiled at first use. Copies share what is compiled.
#[derive(Debug, Default, Clone)]
pub(crate) struct Policies {
    pairs: OnceLock<Arc<Vec<Pair>>>,
}

impl Policies {
    /// Must be called whenever a policy or a binding changes.
    pub fn forget(&mut self) {
        self.pairs = OnceLock::new();
    }

    pub fn pairs(&self, store: &Store) -> Arc<Vec<Pair>> {
        self.pairs.get_or_init(|| Arc::new(compile_all(store))).clone()
    }
}

fn compile_all(store: &Store) -> Vec<Pair> {
    let objects = |table: &str| -> Vec<Arc<Value>> {
        store.table(table).into_iter().flat_map(|t| t.scan("")).map(|(_, o)| o.clone()).collect()
    };
    let policies: BTreeMap<String, Arc<Policy>> =
        objects("validatingadmissionpolicies.admissionregistration.k8s.io")
            .iter()
            .map(|p| (text(p, &["metadata", "name"]).to_owned(), Arc::new(Policy::read(p))))
            .collect();
    objects("validatingadmissionpolicybindings.admissionregistration.k8s.io")
        .into_iter()
        .filter_map(|binding| {
            let policy = policies.get(text(&binding, &["spec", "policyName"]))?.clone();
            Some((policy, binding))
        })
        .collect()
}

impl Policy {
    fn read(object: &Value) -> Self {
        let named = |field: &str| -> Vec<(String, Compiled)> {
            list(object, &["spec", field])
                .iter()
                .map(|v| (text(v, &["name"]).to_owned(), compile(text(v, &["expression"]))))
                .collect()
        };
        let validations = list(object, &["spec", "validations"]).iter().map(|v| Validation {
            expression: text(v, &["expression"]).trim().to_owned(),
            program: compile(text(v, &["expression"])),
            message: text(v, &["message"]).trim().to_owned(),
            message_program: match text(v, &["messageExpression"]) {
                "" => None,
                source => compile(source).ok(),
            },
            reason: text(v, &["reason"]).to_owned(),
        });
        Self {
            name: text(object, &["metadata", "name"]).to_owned(),
            constraints: at(object, &["spec", "matchConstraints"]).cloned().unwrap_or_default(),
            param_kind: at(object, &["spec", "paramKind"]).cloned(),
            fails_closed: text(object, &["spec", "failurePolicy"]) != "Ignore",
            conditions: named("matchConditions"),
            variables: named("variables"),
            validations: validations.collect(),
        }
    }

    /// Why the policy denies a request (message, reason), or `None`.
    pub fn violation(&self, evaluation: &Evaluation<'_>, params: Option<&Value>) -> Option<(String, String)> {
        let base = evaluation.context(params.map_or(Cel::Null, to_cel));
        match self.applies(&base) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(why) => return self.fails_closed.then_some((why, String::new())),
        }
        let scope = self.with_variables(base);
        for v in &self.validations {
            let verdict = v.program.as_ref().map_err(Clone::clone).and_then(|p| evaluate(p, &scope));
            let why = match verdict {
                Ok(Cel::Bool(true)) => continue,
                Ok(_) => v.denial(&scope),
                Err(_) if !self.fails_closed => continue,
                Err(why) => format!("expression '{}' resulted in error: {why}", v.expression),
            };
            return Some((why, v.reason.clone()));
        }
        None
    }

    /// Whether all match conditions hold; false wins over an error, as in the real server.
    fn applies(&self, scope: &Context<'_, '_>) -> Result<bool, String> {
        let mut error = None;
        for (name, program) in &self.conditions {
            match program.as_ref().map_err(Clone::clone).and_then(|p| evaluate(p, scope)) {
                Ok(Cel::Bool(false)) => return Ok(false),
                Ok(Cel::Bool(true)) => {}
                Ok(_) => error = Some(format!("matchCondition {name:?} is not a bool")),
                Err(why) => error = Some(format!("matchCondition {name:?} resulted in error: {why}")),
            }
        }
        error.map_or(Ok(true), Err)
    }

    /// Adds the `variables` map. A variable in error stays absent, so that using it is the error.
    fn with_variables<'a>(&self, mut scope: Context<'a, 'a>) -> Context<'a, 'a> {
        let mut values = BTreeMap::new();
        for (name, program) in &self.variables {
            scope.add_variable_from_value("variables", cel_map(&values));
            if let Ok(value) = program.as_ref().map_err(Clone::clone).and_then(|p| evaluate(p, &scope)) {
                values.insert(name.clone(), value);
            }
        }
        scope.add_variable_from_value("variables", cel_map(&values));
        scope
    }
}

fn cel_map(values: &BTreeMap<String, Cel>) -> Cel {
    let entries =
        values.iter().map(|(k, v)| (cel::objects::Key::String(Arc::new(k.clone())), v.clone())).collect();
    Cel::Map(cel::objects::Map { map: Arc::new(entries) })
}

impl Validation {
    fn denial(&self, scope: &Context<'_, '_>) -> String {
        let computed = self.message_program.as_ref().and_then(|p| evaluate(p, scope).ok());
        computed.as_ref().and_then(as_text).unwrap_or_else(|| {
            if self.message.is_empty() {
                format!("failed expression: {}", self.expression)
            } else {
                self.message.clone()
            }
        })
    }
}

/// The variables of one request, converted when a policy first names them and then kept for all: what most conditions ask
/// is who does it.
pub(crate) struct Evaluation<'a> {
    object: Variable<'a>,
    old: Variable<'a>,
    request: Variable<'a>,
    namespace: Variable<'a>,
}

struct Variable<'a> {
    json: Option<Cow<'a, Value>>,
    value: OnceLock<Box<dyn Val>>,
}

impl<'a> Variable<'a> {
    fn new(json: Option<Cow<'a, Value>>) -> Self {
        Self { json, value: OnceLock::new() }
    }

    fn get(&self) -> Option<&dyn Val> {
        if let Some(value) = self.value.get() {
            return Some(&**value);
        }
        let value = self.json.as_deref().map_or(Cel::Null, to_cel).try_into().ok()?;
        Some(&**self.value.get_or_init(|| value))
    }
}

impl<'a> Evaluation<'a> {
    pub fn new(attributes: &Attributes<'a>, namespace: Option<&'a Value>) -> Self {
        Self {
            object: Variable::new(attributes.object.map(Cow::Borrowed)),
            old: Variable::new(attributes.old.map(Cow::Borrowed)),
            request: Variable::new(Some(Cow::Owned(attributes.request()))),
            namespace: Variable::new(namespace.map(Cow::Borrowed)),
        }
    }

    fn context(&self, params: Cel) -> Context<'_, '_> {
        let mut scope = context();
        scope.set_variable_resolver(self);
        scope.add_variable_from_value("params", params);
        scope
    }
}

impl VariableResolver for Evaluation<'_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        let variable = match variable {
            "object" => &self.object,
            "oldObject" => &self.old,
            "request" => &self.request,
            "namespaceObject" => &self.namespace,
            _ => return None,
        };
        variable.get().map(CowVal::Borrowed)
    }
}

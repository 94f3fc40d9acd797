//! CEL over JSON: one environment for admission policies and for CRD rules.
//!
//! Absent here, unlike in the real server: type checking, cost limits, `authorizer`, quantities,
//! URLs and IPs.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use cel::objects::{Key, Map};
use cel::{Context, Env, Program, Value as Cel, extensions};
use serde_json::Value;

static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    for extension in [extensions::strings, extensions::lists, extensions::math, extensions::encoders] {
        // These only fail where two of them declare the same function, which the crate's own do not.
        if let Err(error) = env.add_extension(extension) {
            tracing::warn!(%error, "a CEL extension is unavailable");
        }
    }
    Arc::new(env)
});

/// Parses an expression; the error is the parser's text.
pub(crate) fn compile(source: &str) -> Result<Arc<Program>, String> {
    ENV.compile(source).map(Arc::new).map_err(|e| e.to_string())
}

/// An empty context with the functions of the environment.
pub(crate) fn context<'a>() -> Context<'a, 'a> {
    Context::with_env(ENV.clone())
}

/// Evaluates to a value, or the error's text as the server words it.
pub(crate) fn evaluate(program: &Program, context: &Context) -> Result<Cel, String> {
    program.execute(context).map_err(|e| match e {
        cel::ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        other => other.to_string(),
    })
}

fn rule_context<'a>(value: &Value, old: Option<&Value>, optional_old: bool) -> Context<'a, 'a> {
    let mut ctx = context();
    ctx.add_variable_from_value("self", to_cel(value));
    match (old, optional_old) {
        (Some(old), false) => ctx.add_variable_from_value("oldSelf", to_cel(old)),
        (old, true) => {
            let optional = old.map_or_else(cel::objects::OptionalValue::none, |o| {
                cel::objects::OptionalValue::of(to_cel(o))
            });
            ctx.add_variable_from_value("oldSelf", Cel::Opaque(Arc::new(optional)));
        }
        (None, false) => {}
    }
    ctx
}

/// `self` and `oldSelf` for the rules of one place, converted once and only if a rule is evaluated.
pub(crate) struct RuleScope<'v> {
    value: &'v Value,
    old: Option<&'v Value>,
    plain: OnceCell<Context<'static, 'static>>,
}

impl<'v> RuleScope<'v> {
    pub fn new(value: &'v Value, old: Option<&'v Value>) -> Self {
        Self { value, old, plain: OnceCell::new() }
    }

    fn plain(&self) -> &Context<'static, 'static> {
        self.plain.get_or_init(|| rule_context(self.value, self.old, false))
    }
}

/// Evaluates a CRD rule with `self` and `oldSelf`.
pub(crate) fn check_rule(
    program: &Program,
    scope: &RuleScope<'_>,
    optional_old: bool,
) -> Result<bool, String> {
    let verdict = if optional_old {
        evaluate(program, &rule_context(scope.value, scope.old, true))
    } else {
        evaluate(program, scope.plain())
    };
    match verdict? {
        Cel::Bool(verdict) => Ok(verdict),
        other => Err(format!("must evaluate to a bool, got {}", other.type_of())),
    }
}

/// Evaluates a rule's `messageExpression`.
pub(crate) fn rule_text(program: &Program, value: &Value, old: Option<&Value>) -> Option<String> {
    match program.execute(&rule_context(value, old, false)) {
        Ok(Cel::String(text)) => Some(text.to_string()),
        _ => None,
    }
}

/// JSON as a CEL value: integers stay integers, objects become maps.
pub(crate) fn to_cel(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(b) => Cel::Bool(*b),
        Value::Number(n) => match (n.as_i64(), n.as_f64()) {
            (Some(i), _) => Cel::Int(i),
            (None, f) => Cel::Float(f.unwrap_or(f64::NAN)),
        },
        Value::String(s) => Cel::String(Arc::new(s.clone())),
        Value::Array(items) => Cel::List(Arc::new(items.iter().map(to_cel).collect())),
        Value::Object(map) => {
            let entries: HashMap<Key, Cel> =
                map.iter().map(|(k, v)| (Key::String(Arc::new(k.clone())), to_cel(v))).collect();
            Cel::Map(Map { map: Arc::new(entries) })
        }
    }
}

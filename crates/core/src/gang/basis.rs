//! What a plan was made from.

use muster_model::{AcceleratorClass, Gang, Role, Rules, Within};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A basis larger than this is not kept: what it stands for is made anew from the objects.
const LARGEST_BASIS: usize = 256 * 1024;

/// What a plan was made from: it goes into the status with the plan, so that the next leader judges the plan as this one
/// did, and a Queue or class that is gone takes nothing from a gang that holds a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Basis {
    #[serde(default)]
    pub(super) priority: i32,
    pub(super) classes: Vec<AcceleratorClass>,
    pub(super) roles: Vec<Role>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) within: Option<Within>,
    #[serde(default)]
    pub(super) rules: Rules,
}

impl Basis {
    /// Of a request.
    pub fn of(request: &Gang) -> Self {
        Self {
            priority: request.priority,
            classes: request.classes.clone(),
            roles: request.roles.clone(),
            within: request.within.clone(),
            rules: request.rules.clone(),
        }
    }

    /// As it is written; `None` where it is too large.
    pub fn written(&self) -> Option<Value> {
        let value = serde_json::to_value(self).ok()?;
        (value.to_string().len() <= LARGEST_BASIS).then_some(value)
    }

    /// As it was written. What another version wrote and this one cannot read is none.
    pub fn read(value: &Value) -> Option<Self> {
        Self::deserialize(value).ok()
    }

    /// Its roles.
    pub fn roles(&self) -> &[Role] {
        &self.roles
    }

    /// Its accelerator classes.
    pub fn classes(&self) -> &[AcceleratorClass] {
        &self.classes
    }
}

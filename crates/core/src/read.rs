//! One Gang as it stands on the server, for those who look and do not write.
//!
//! ```text
//!   Gang object + World + parts of its plan ──read_gang──▶ model::Gang: holding its plan, or waiting
//! ```

use muster_api::{Gang as Object, GangPlan};
use muster_cluster::template::Learned;
use muster_model::{Gang, Reason, Resources};
use std::collections::BTreeMap;

use crate::gang::GangRt;
use crate::shared::Shared;
use crate::{Config, World};
use muster_lifecycle::gang::Ask;
use muster_model::GangState;

/// Name and text of a part of a large plan.
pub fn plan_part(part: GangPlan) -> Option<(String, String)> {
    let (name, text) = (part.metadata.name?, part.spec.text);
    muster_api::plan_codec::is_named_after(&name, &text).then_some((name, text))
}

/// What the engine is told of a gang by an operator that has just begun; `None` of one that holds nothing and asks for
/// nothing (it ended, leaves, or is suspended). `chunks` are the parts of large plans, by name; `learned` tells
/// what is known of a role's pods beyond their template.
///
/// # Errors
/// What is wrong with the gang, given the other objects, or with its plan. Its pods count where they are.
pub fn read_gang(
    world: &World,
    object: Object,
    chunks: &BTreeMap<String, String>,
    learned: &dyn Fn(&str) -> Option<Learned>,
) -> Result<Option<Gang>, Reason> {
    let mut shared = Shared::new(Config::default(), 0);
    shared.parts.clone_from(chunks);
    let rt = GangRt::new(object, &shared);
    if let Err(error) = &rt.life.committed().plan {
        return Err(Reason::Invalid {
            field: "status.plan".into(),
            message: format!("cannot be read: {error}"),
            remedy: "the operator places the gang anew".into(),
        });
    }
    let request = || world.request(&rt.object, learned, rt.since());
    match rt.life.asks(&rt.terms, true) {
        Ask::Nothing | Ask::AsBefore => Ok(None),
        Ask::Place => {
            let request = request()?;
            let blocked = world.fit_into_quotas(&mut request.clone(), &Resources::default()).is_some();
            Ok((!blocked).then_some(Gang { state: GangState::Waiting, ..request }))
        }
        Ask::Hold(plan) | Ask::Replace(plan, _) => {
            let state = GangState::Holding(plan.clone());
            let gang = match &rt.basis {
                Some(basis) => rt.on_basis(basis),
                None => request()?,
            };
            Ok(Some(Gang { state, ..gang }))
        }
    }
}

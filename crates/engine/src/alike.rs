//! Gangs that ask alike are prepared once: a thousand replicas of a service wait with one preparation.
//!
//! ```text
//!   Gang ──same roles, classes, rules, and terms that keep its pods away?──▶ the Prepared of the one before
//!                                     └─ no ─▶ problem::prepare, remembered
//! ```

use muster_model::{AcceleratorClass, Gang, PodTraits, Reason, Role, Rules, Within};
use std::{collections::VecDeque, sync::Arc};

use crate::{
    cluster::Cluster,
    problem::{self, Prepared},
    repulsion::TermId,
};

/// Preparations remembered; the one used last is the first.
const MOST: usize = 16;

/// What is prepared of a gang, labels apart: every gang has its own, and only the terms that select them matter.
#[derive(Debug)]
struct Question {
    classes: Vec<AcceleratorClass>,
    roles: Vec<Role>,
    within: Option<Within>,
    rules: Rules,
    /// By role.
    repelled_by: Vec<Vec<TermId>>,
}

impl Question {
    fn is_of(&self, gang: &Gang, repelled_by: &[Vec<TermId>]) -> bool {
        self.repelled_by == repelled_by
            && self.classes == gang.classes
            && self.within == gang.within
            && self.rules == gang.rules
            && self.roles.len() == gang.roles.len()
            && self.roles.iter().zip(&gang.roles).all(|(one, other)| is_alike(one, other))
    }
}

/// Whether two roles differ in nothing but their labels.
fn is_alike(one: &Role, other: &Role) -> bool {
    // Field by field, so that a new one is not forgotten.
    let Role {
        name,
        requests,
        devices,
        node_selector,
        affinity,
        tolerations,
        traits: PodTraits { labels: _, preferred },
        pods_per_unit,
        min,
        max,
        valid,
        segments,
        spares,
    } = one;
    *pods_per_unit == other.pods_per_unit
        && (*min, *max, *spares, *devices) == (other.min, other.max, other.spares, other.devices)
        && *name == other.name
        && *segments == other.segments
        && *valid == other.valid
        && *requests == other.requests
        && *node_selector == other.node_selector
        && *affinity == other.affinity
        && *tolerations == other.tolerations
        && *preferred == other.traits.preferred
}

/// What was prepared lately.
#[derive(Debug, Default)]
pub struct Alike(VecDeque<(Question, Arc<Prepared>)>);

impl Alike {
    /// Prepares a gang, or takes what was prepared for one that asks the same.
    ///
    /// # Errors
    /// As [`problem::prepare`].
    pub fn prepare(&mut self, cluster: &mut Cluster, gang: &Gang) -> Result<Arc<Prepared>, Reason> {
        let labels = gang.roles.iter().map(|role| &role.traits.labels);
        let repelled_by: Vec<Vec<TermId>> =
            labels.map(|labels| cluster.repelling(&gang.key.namespace, labels)).collect();
        let same = |(question, prepared): &(Question, Arc<Prepared>)| {
            prepared.generation == cluster.index.generation && question.is_of(gang, &repelled_by)
        };
        if let Some(at) = self.0.iter().position(same)
            && let Some((question, prepared)) = self.0.remove(at)
        {
            self.0.push_front((question, prepared.clone()));
            return Ok(prepared);
        }
        let prepared = Arc::new(problem::prepare(cluster, gang, None)?);
        let question = Question {
            classes: gang.classes.clone(),
            roles: gang.roles.clone(),
            within: gang.within.clone(),
            rules: gang.rules.clone(),
            repelled_by,
        };
        self.0.push_front((question, prepared.clone()));
        self.0.truncate(MOST);
        Ok(prepared)
    }
}

#[cfg(test)]
mod tests {
    use super::{Alike, Arc, Cluster, Gang, Role};
    use muster_model::{
        AcceleratorClass, GangState, Mode, Near, NodeSelectorTerm, ObjectKey, PodTerm, PodTraits, Preference,
        Requirement, Resources, Rules, Segment, Toleration, TolerationOperator, Uid, Within,
    };
    use std::collections::{BTreeMap, BTreeSet};

    type Difference = Box<dyn Fn(&mut Gang)>;

    fn gang(name: &str) -> Gang {
        let role = Role {
            name: "worker".into(),
            requests: Resources::of([("cpu", 1)]),
            devices: 1,
            node_selector: BTreeMap::new(),
            affinity: Vec::new(),
            tolerations: Vec::new(),
            traits: PodTraits {
                labels: BTreeMap::from([("gang".into(), name.to_owned())]),
                preferred: Vec::new(),
            },
            pods_per_unit: 2,
            min: 2,
            max: 4,
            valid: Vec::new(),
            segments: Vec::new(),
            spares: 0,
        };
        let class = AcceleratorClass { name: "a".into(), resource: "gpu".into(), requirements: Vec::new() };
        Gang {
            key: ObjectKey::new("ns", name),
            uid: Uid::default(),
            queue: "main".into(),
            priority: 0,
            since: 0,
            classes: vec![class],
            roles: vec![role],
            within: None,
            rules: Rules::default(),
            avoid: BTreeSet::new(),
            state: GangState::Waiting,
        }
    }

    #[test]
    fn gangs_that_differ_in_one_thing_are_prepared_apart() {
        let term = || NodeSelectorTerm { requirements: vec![Requirement::label_in("zone", &["z"])] };
        let level = || "Node".to_owned();
        let differences: Vec<(&str, Difference)> = vec![
            ("classes", Box::new(|gang| gang.classes[0].resource = "npu".into())),
            (
                "within",
                Box::new(move |gang| gang.within = Some(Within { level: level(), mode: Mode::Preferred })),
            ),
            (
                "rules",
                Box::new(move |gang| {
                    gang.rules.near.push(Near {
                        roles: vec!["worker".into()],
                        level: level(),
                        mode: Mode::Preferred,
                    });
                }),
            ),
            ("roles", Box::new(|gang| gang.roles.push(Role { name: "two".into(), ..gang.roles[0].clone() }))),
            ("name", Box::new(|gang| gang.roles[0].name = "other".into())),
            ("requests", Box::new(|gang| gang.roles[0].requests.set("cpu", 2))),
            ("devices", Box::new(|gang| gang.roles[0].devices = 2)),
            ("selector", Box::new(|gang| drop(gang.roles[0].node_selector.insert("k".into(), "v".into())))),
            ("affinity", Box::new(move |gang| gang.roles[0].affinity.push(term()))),
            (
                "tolerations",
                Box::new(|gang| {
                    let key = Some("k".to_owned());
                    gang.roles[0].tolerations.push(Toleration {
                        key,
                        operator: TolerationOperator::Exists,
                        value: String::new(),
                        effect: None,
                    });
                }),
            ),
            (
                "preferred",
                Box::new(move |gang| {
                    gang.roles[0].traits.preferred.push(Preference { weight: 1, term: term() });
                }),
            ),
            ("pods", Box::new(|gang| gang.roles[0].pods_per_unit = 1)),
            ("min", Box::new(|gang| gang.roles[0].min = 1)),
            ("max", Box::new(|gang| gang.roles[0].max = 3)),
            ("valid", Box::new(|gang| gang.roles[0].valid = vec![2, 4])),
            (
                "segments",
                Box::new(move |gang| {
                    gang.roles[0].segments.push(Segment { pods: 2, level: level(), mode: Mode::Required });
                }),
            ),
            ("spares", Box::new(|gang| gang.roles[0].spares = 1)),
        ];
        let (mut cluster, mut alike) = (Cluster::default(), Alike::default());
        let first = alike.prepare(&mut cluster, &gang("one")).expect("valid");
        let same = alike.prepare(&mut cluster, &gang("two")).expect("valid");
        assert!(Arc::ptr_eq(&first, &same), "only the labels differ");
        for (what, change) in differences {
            let mut other = gang("other");
            change(&mut other);
            let other = alike.prepare(&mut cluster, &other).expect("valid");
            assert!(!Arc::ptr_eq(&first, &other), "{what}");
        }
    }

    #[test]
    fn a_gang_that_others_keep_away_is_prepared_apart() {
        let (mut cluster, mut alike) = (Cluster::default(), Alike::default());
        let term = PodTerm {
            namespaces: None,
            requirements: vec![Requirement::label_in("gang", &["two"])],
            topology_key: "rack".into(),
        };
        cluster.set_repels("pod".into(), "node".into(), vec![term]);
        let first = alike.prepare(&mut cluster, &gang("one")).expect("valid");
        let other = alike.prepare(&mut cluster, &gang("two")).expect("valid");
        assert!(!Arc::ptr_eq(&first, &other));
    }
}

//! Controls of running simulated nodes.
//!
//! ```text
//! FleetHandle::kill(..) ──► Command ──► Fleet's loop ──► (reply when it has taken effect)
//! ```

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::admission::Refusal;
use super::node::{Intake, Power};
use super::quantity::{self, QuantityError};
use super::spec::{NodeSpec, new_taint};
use super::writes;

/// Why a control had no effect.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The fleet has no node of this name.
    #[error("the fleet has no node {0:?}; start it with Fleet::start or add_node")]
    NoNode(String),
    /// No running pod of this name is on a node of the fleet.
    #[error("no running pod {0:?} is on a node of the fleet")]
    NoPod(String),
    /// A capacity that is no quantity.
    #[error(transparent)]
    Quantity(#[from] QuantityError),
    /// The API refused.
    #[error("the API server refused a request of the simulated kubelet: {0}")]
    Api(#[from] kube::Error),
    /// The fleet has been stopped.
    #[error("the fleet has stopped")]
    Stopped,
}

/// What the fleet's loop is asked to do.
pub(crate) enum Order {
    Add(Box<NodeSpec>),
    Remove(String),
    Power(String, Power),
    Intake(String, Intake),
    Condition { node: String, kind: String, status: String, reason: String, message: String },
    Allocatable { node: String, resource: String, quantity: String },
    Exit { namespace: String, name: String, code: i32, for_good: bool },
}

pub(crate) struct Command {
    pub order: Order,
    /// What the handle has to write to the node's status, if anything.
    pub reply: oneshot::Sender<Result<Option<Value>, FleetError>>,
}

/// Controls a running [`Fleet`](super::Fleet). Dropping the last clone does not stop it; see [`Self::stop`].
#[derive(Clone)]
pub struct FleetHandle {
    pub(crate) client: Client,
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) token: CancellationToken,
}

impl FleetHandle {
    async fn order(&self, order: Order) -> Result<Option<Value>, FleetError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command { order, reply }).await.map_err(|_| FleetError::Stopped)?;
        answer.await.map_err(|_| FleetError::Stopped)?
    }

    async fn order_status(&self, node: &str, order: Order) -> Result<(), FleetError> {
        if let Some(status) = self.order(order).await? {
            writes::node_status(&self.client, node, &status).await?;
        }
        Ok(())
    }

    /// Adds a machine and registers its node.
    pub async fn add_node(&self, spec: NodeSpec) -> Result<(), FleetError> {
        let name = spec.name.clone();
        let object = self.order(Order::Add(Box::new(spec))).await?.unwrap_or_default();
        writes::register(&self.client, &name, &object["node"]).await?;
        writes::node_status(&self.client, &name, &object["status"]).await?;
        Ok(())
    }

    /// The machine is gone: no heartbeats, no statuses, its containers stop and nobody says so.
    pub async fn kill(&self, node: &str) -> Result<(), FleetError> {
        self.power(node, Power::Down).await
    }

    /// The kubelet goes silent; containers run on.
    pub async fn hang(&self, node: &str) -> Result<(), FleetError> {
        self.power(node, Power::Hung).await
    }

    /// The kubelet is back. After [`Self::kill`] the containers are found dead (exit code 137) and
    /// restarted or not as the restart policy says; pods deleted meanwhile are cleared away.
    pub async fn revive(&self, node: &str) -> Result<(), FleetError> {
        self.power(node, Power::Up).await?;
        self.order(Order::Intake(node.to_owned(), Intake::Normal)).await.map(|_| ())
    }

    async fn power(&self, node: &str, power: Power) -> Result<(), FleetError> {
        self.order_status(node, Order::Power(node.to_owned(), power)).await
    }

    /// Every new pod fails with `reason`, until [`Self::revive`].
    pub async fn refuse_pods(&self, node: &str, reason: &str) -> Result<(), FleetError> {
        let message = format!("Pod was rejected: {reason}");
        let refusal = Refusal { reason: reason.to_owned(), message };
        self.order(Order::Intake(node.to_owned(), Intake::Refusing(refusal))).await.map(|_| ())
    }

    /// Heartbeats go on, new pods are never started nor refused, until [`Self::revive`].
    pub async fn silent(&self, node: &str) -> Result<(), FleetError> {
        self.order(Order::Intake(node.to_owned(), Intake::Silent)).await.map(|_| ())
    }

    /// Sets a condition of the node's status; it stays until set again.
    pub async fn set_condition(
        &self,
        node: &str,
        kind: &str,
        status: &str,
        reason: &str,
        message: &str,
    ) -> Result<(), FleetError> {
        let [kind, status, reason, message] = [kind, status, reason, message].map(str::to_owned);
        self.order_status(node, Order::Condition { node: node.to_owned(), kind, status, reason, message })
            .await
    }

    /// Sets `status.allocatable` of a resource, as when a device fails its health check. Running
    /// pods are not told.
    pub async fn set_allocatable(
        &self,
        node: &str,
        resource: &str,
        quantity: &str,
    ) -> Result<(), FleetError> {
        quantity::parse(resource, quantity)?;
        let [resource, quantity] = [resource, quantity].map(str::to_owned);
        self.order_status(node, Order::Allocatable { node: node.to_owned(), resource, quantity }).await
    }

    /// Sets `spec.unschedulable`.
    pub async fn cordon(&self, node: &str) -> Result<(), FleetError> {
        Ok(writes::patch_node(&self.client, node, &json!({"spec": {"unschedulable": true}})).await?)
    }

    /// Clears `spec.unschedulable`.
    pub async fn uncordon(&self, node: &str) -> Result<(), FleetError> {
        Ok(writes::patch_node(&self.client, node, &json!({"spec": {"unschedulable": null}})).await?)
    }

    /// Adds or replaces a taint (same key and effect); `value` may be empty.
    pub async fn taint(&self, node: &str, key: &str, value: &str, effect: &str) -> Result<(), FleetError> {
        let taint = new_taint(key, value, effect);
        self.edit_taints(node, |taints| {
            taints.retain(|t| !(t.key == taint.key && t.effect == taint.effect));
            taints.push(taint.clone());
        })
        .await
    }

    /// Removes every taint with this key.
    pub async fn untaint(&self, node: &str, key: &str) -> Result<(), FleetError> {
        self.edit_taints(node, |taints| taints.retain(|t| t.key != key)).await
    }

    async fn edit_taints(&self, node: &str, edit: impl Fn(&mut Vec<Taint>)) -> Result<(), FleetError> {
        edit_taints(&self.client, node, edit).await.map_err(FleetError::from)
    }

    /// Sets labels, or removes those given as `None`.
    pub async fn relabel(&self, node: &str, labels: &[(&str, Option<&str>)]) -> Result<(), FleetError> {
        let labels: serde_json::Map<_, _> = labels.iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect();
        Ok(writes::patch_node(&self.client, node, &json!({"metadata": {"labels": labels}})).await?)
    }

    /// The machine is gone for good: Node and Lease are deleted, its pods stay for PodGC.
    pub async fn delete_node(&self, node: &str) -> Result<(), FleetError> {
        self.order(Order::Remove(node.to_owned())).await?;
        Ok(writes::delete_node(&self.client, node).await?)
    }

    /// Ends every container of a running pod with `code`, for good.
    pub async fn finish_pod(&self, namespace: &str, name: &str, code: i32) -> Result<(), FleetError> {
        self.exit(namespace, name, code, true).await
    }

    /// Ends the first container of a running pod with `code`; its restart policy decides what follows.
    pub async fn crash_container(&self, namespace: &str, name: &str, code: i32) -> Result<(), FleetError> {
        self.exit(namespace, name, code, false).await
    }

    async fn exit(&self, namespace: &str, name: &str, code: i32, for_good: bool) -> Result<(), FleetError> {
        let [namespace, name] = [namespace, name].map(str::to_owned);
        self.order(Order::Exit { namespace, name, code, for_good }).await.map(|_| ())
    }

    /// Stops every simulated kubelet; objects stay as they are.
    pub fn stop(&self) {
        self.token.cancel();
    }
}

/// Tries of an optimistic read-change-write before its conflict is reported.
const CONFLICT_TRIES: usize = 10;

/// Changes a node's taints, guarded by resourceVersion: taints are one atomic list with many writers.
pub(crate) async fn edit_taints(
    client: &Client,
    node: &str,
    edit: impl Fn(&mut Vec<Taint>),
) -> Result<(), kube::Error> {
    let api: kube::Api<Node> = kube::Api::all(client.clone());
    let mut tries = 0;
    loop {
        let live = api.get(node).await?;
        let before = live.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let mut taints = before.clone();
        edit(&mut taints);
        if taints == before {
            return Ok(());
        }
        tries += 1;
        let patch = json!({"metadata": {"resourceVersion": live.metadata.resource_version}, "spec": {"taints": taints}});
        match writes::patch_node(client, node, &patch).await {
            Err(error) if writes::is_code(&error, 409) && tries < CONFLICT_TRIES => {}
            answer => return answer,
        }
    }
}

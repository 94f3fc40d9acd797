//! Commands on standard input while the playground is up: what happens to machines has no kubectl.
//!
//! ```text
//!   stdin (a thread) ──lines──▶ parse ──▶ Order ──▶ fleet | map
//! ```

use anyhow::{Result, bail};
use std::io::BufRead;
use tokio::sync::mpsc;

use super::paint::Paint;
use super::stage::Scene;
use super::{nodes, story};

/// What can be ordered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Order {
    Kill(String),
    Revive(String),
    Cordon(String),
    Uncordon(String),
    Map,
    Help,
}

/// What they do, for people.
const HELP: &[(&str, &str)] = &[
    ("kill NODE", "the machine is gone without a word"),
    ("revive NODE", "it is back"),
    ("cordon NODE", "no new pods there"),
    ("uncordon NODE", "new pods again"),
    ("map", "who holds which GPU"),
    ("help", "this list"),
];

/// An order in a line; `None` for an empty one.
fn parse(line: &str) -> Result<Option<Order>, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let order = match words[..] {
        [] => return Ok(None),
        ["map"] => Order::Map,
        ["help"] => Order::Help,
        ["kill", node] => Order::Kill(node.to_owned()),
        ["revive", node] => Order::Revive(node.to_owned()),
        ["cordon", node] => Order::Cordon(node.to_owned()),
        ["uncordon", node] => Order::Uncordon(node.to_owned()),
        [order @ ("kill" | "revive" | "cordon" | "uncordon"), ..] => {
            return Err(format!("{order} needs the name of one node, such as: {order} nvl-a-02"));
        }
        [order, ..] => return Err(format!("there is no command {order:?}; help lists them")),
    };
    Ok(Some(order))
}

/// Says how to reach the cluster and what to try.
pub fn invite(scene: &Scene, paint: &mut Paint) {
    paint.step("It is yours: in another terminal");
    paint.line(&format!("     export KUBECONFIG={}", scene.admin.display()));
    if let Some(folder) = scene.kubectl.parent().filter(|folder| folder.is_absolute()) {
        paint.line(&format!("     export PATH=\"{}:$PATH\"", folder.display()));
    }
    paint.line("");
    for line in story::look() {
        paint.line(&format!("     {line}"));
    }
    paint.line("");
    paint.say(&format!("The operator logs to {}", scene.log.display()));
    paint.say("Commands here (Ctrl-C ends everything):");
    help(paint);
}

fn help(paint: &mut Paint) {
    let rows: Vec<Vec<String>> =
        HELP.iter().map(|(order, what)| vec![(*order).to_owned(), (*what).to_owned()]).collect();
    for line in super::paint::table(&rows) {
        paint.line(&format!("     {line}"));
    }
}

/// Obeys until it is dropped.
///
/// # Errors
/// None that ends it: what goes wrong is said.
pub async fn serve(scene: &Scene, paint: &mut Paint) -> Result<()> {
    // A thread of its own: one that waits in a read would hold up the runtime's end.
    let (lines, mut given) = mpsc::channel::<String>(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if lines.blocking_send(line).is_err() {
                return;
            }
        }
    });
    while let Some(line) = given.recv().await {
        match parse(&line) {
            Ok(Some(order)) => {
                if let Err(error) = obey(scene, paint, order).await {
                    paint.say(&format!("{error:#}"));
                }
            }
            Ok(None) => {}
            Err(message) => paint.say(&message),
        }
    }
    // Nobody is there to type (CI, a service): it stays until it is interrupted.
    std::future::pending().await
}

async fn obey(scene: &Scene, paint: &mut Paint, order: Order) -> Result<()> {
    let fleet = &scene.fleet;
    if let Order::Kill(node) | Order::Revive(node) | Order::Cordon(node) | Order::Uncordon(node) = &order
        && nodes::all().iter().all(|one| one.name != *node)
    {
        bail!("there is no simulated node {node:?}; kubectl get nodes lists them");
    }
    let done = match order {
        Order::Kill(node) => {
            fleet.kill(&node).await?;
            format!(
                "{node} is silent; its jobs recover when the node controller has noticed (map shows them)"
            )
        }
        Order::Revive(node) => {
            fleet.revive(&node).await?;
            format!("{node} is back")
        }
        Order::Cordon(node) => {
            fleet.cordon(&node).await?;
            format!("{node} takes no new pods")
        }
        Order::Uncordon(node) => {
            fleet.uncordon(&node).await?;
            format!("{node} takes new pods")
        }
        Order::Map => return story::show_map(scene, paint, Paint::settle).await.map(|_| ()),
        Order::Help => {
            help(paint);
            return Ok(());
        }
    };
    paint.say(&done);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{HELP, Order, parse};

    #[test]
    fn every_command_of_the_help_is_understood() {
        for (line, _) in HELP {
            assert!(parse(&line.replace("NODE", "nvl-a-02")).is_ok_and(|order| order.is_some()), "{line}");
        }
        assert_eq!(parse("  kill   nvl-a-02 "), Ok(Some(Order::Kill("nvl-a-02".into()))));
        assert_eq!(parse("  "), Ok(None));
    }

    #[test]
    fn a_wrong_command_says_what_to_do() {
        assert!(parse("kill").is_err_and(|message| message.contains("kill nvl-a-02")));
        assert!(parse("shoot nvl-a-02").is_err_and(|message| message.contains("help")));
    }
}

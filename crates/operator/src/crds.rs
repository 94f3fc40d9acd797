//! `muster crds`: the CustomResourceDefinitions as YAML.

use anyhow::Context;
use std::io::Write;

/// Prints all of them as one YAML stream.
///
/// # Errors
/// When standard output cannot be written.
pub fn print() -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for crd in muster_api::all_crds() {
        let text =
            serde_yaml_ng::to_string(&crd).context("cannot write a CustomResourceDefinition as YAML")?;
        match write!(out, "---\n{text}") {
            // The reader has seen enough (`muster crds | head`).
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.context("cannot write to standard output")?,
        }
    }
    Ok(())
}

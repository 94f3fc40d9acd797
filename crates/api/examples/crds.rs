//! Writes the CustomResourceDefinitions to `crds/`: `cargo run -p muster-api --example crds`.

use std::{fs, io, path::Path};

fn main() -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds");
    fs::create_dir_all(&folder)?;
    for crd in muster_api::all_crds() {
        let text = muster_api::crds::to_yaml(&crd).map_err(io::Error::other)?;
        let path = folder.join(muster_api::crds::file_name(&crd));
        fs::write(&path, &text)?;
        println!("{}: {} KiB", path.display(), text.len() >> 10);
    }
    Ok(())
}

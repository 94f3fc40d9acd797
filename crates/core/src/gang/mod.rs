//! One gang as the core knows it: the object, its life, and what was told about it.
//!
//! ```text
//!   facts ─▶ settle: look (time) ─▶ request ─▶ Life::next ─▶ status to commit ─▶ desk
//!                                                  └ nothing to commit ─▶ what the engine holds, pods, children
//! ```

mod basis;
mod change;
mod children;
mod facts;
mod pods;
mod probe;
mod request;
mod revisions;
mod rt;
mod settle;
mod status;

pub use facts::time;
pub use pods::remove_orphan;
pub use request::rebase;
pub use revisions::are_kept;
pub use rt::{FAULT, Fault, GangRt, older};
pub use settle::{committed, delete, fail, forget, index_nodes, say_fault, settle};

//! The programs of a Kubernetes control plane, built once from Go modules and kept in a cache.
//!
//! ```text
//! go.mod, go.sum, *.go, Go's version ──SHA-256──> <cache>/kubernetes/<version>-<key>/
//!                                                   └ absent: lock, go build each, rename into place
//! ```
//!
//! The first build takes minutes, a later one with Go's own cache warm seconds, and a hit nothing.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use tokio::process::Command;

use crate::logs;

/// How often a long build says that it is alive: CI systems end jobs that stay silent for minutes.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// Where the Go module lies, as an environment variable, for a program that left its source tree.
pub const SOURCE_VARIABLE: &str = "MUSTER_CLUSTER_SOURCE";
/// Where built programs are kept, as an environment variable.
pub const CACHE_VARIABLE: &str = "MUSTER_CACHE";

/// What can go wrong while the programs are found or built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Go is not on the PATH.
    #[error(
        "Go is not installed (`go` was not found): install Go {0} or newer from https://go.dev/dl, \
         or use a cluster that exists: `make demo CLUSTER=kind` or `make demo CLUSTER=kubeconfig`"
    )]
    GoMissing(String),
    /// Go is older than the module asks for.
    #[error(
        "Go is too old: {found} is installed and Kubernetes needs {needed} or newer: install it from \
         https://go.dev/dl, or use a cluster that exists: `make demo CLUSTER=kind` or \
         `make demo CLUSTER=kubeconfig`"
    )]
    GoTooOld {
        /// The version on the PATH.
        found: String,
        /// The version that `go.mod` names.
        needed: String,
    },
    /// The Go module was not found.
    #[error(
        "no Go module of the cluster in {0}: set {SOURCE_VARIABLE} to the folder e2e/cluster of the source"
    )]
    SourceMissing(PathBuf),
    /// The module's `go.mod` lacks a line that the build reads.
    #[error("{path} has no line `{line}`")]
    SourceIncomplete {
        /// The file that was read.
        path: PathBuf,
        /// The start of the missing line.
        line: &'static str,
    },
    /// Neither variable that a cache folder derives from is set.
    #[error("no folder for the cache: set {CACHE_VARIABLE}, XDG_CACHE_HOME or HOME")]
    NoCache,
    /// `go build` failed.
    #[error("building {program} failed ({status}); the end of {log}:\n{tail}", log = log.display())]
    Build {
        /// The program's name.
        program: &'static str,
        /// How `go build` ended.
        status: String,
        /// Its whole output.
        log: PathBuf,
        /// The last lines of it.
        tail: String,
    },
    /// A file operation failed.
    #[error("cannot {what} {path}: {source}", path = path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// One program of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// The store.
    Etcd,
    /// The API server.
    ApiServer,
    /// The controllers of Kubernetes' own kinds.
    ControllerManager,
    /// The scheduler that comes with Kubernetes.
    Scheduler,
    /// The command line.
    Kubectl,
}

impl Program {
    /// All, in the order they are built.
    pub const ALL: [Self; 5] =
        [Self::Etcd, Self::ApiServer, Self::ControllerManager, Self::Scheduler, Self::Kubectl];

    /// The program's file name, which is also its folder's in the Go module.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kubectl => "kubectl",
        }
    }

    /// What to tell about a first build's time: measured on two otherwise idle cores, in this order.
    const fn first_build(self) -> &'static str {
        match self {
            Self::Etcd => "1 minute",
            Self::ApiServer => "4 minutes",
            Self::ControllerManager => "2 minutes",
            Self::Scheduler | Self::Kubectl => "half a minute",
        }
    }
}

/// A folder with the five programs.
#[derive(Debug, Clone)]
pub struct Binaries {
    dir: PathBuf,
}

impl Binaries {
    /// The path of one program.
    pub fn path(&self, program: Program) -> PathBuf {
        self.dir.join(program.name())
    }
}

/// Finds the programs in the cache, or builds them from the Go module; `progress` gets a line now and
/// then, made to be read in a terminal and in a CI log alike.
pub async fn ensure(progress: impl FnMut(&str) + Send) -> Result<Binaries, Error> {
    // The folder of the source tree that this crate was compiled in is right for everybody who works
    // in a checkout; an installed program needs the variable.
    let source = std::env::var_os(SOURCE_VARIABLE)
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/cluster"), PathBuf::from);
    ensure_from(&source, &cache_dir()?, progress).await
}

/// As [`ensure`], from the Go module in `source` into the cache folder `cache`.
pub async fn ensure_from(
    source: &Path,
    cache: &Path,
    mut progress: impl FnMut(&str) + Send,
) -> Result<Binaries, Error> {
    let source = fs::canonicalize(source).map_err(|_| Error::SourceMissing(source.to_owned()))?;
    let build = Build::plan(&source, cache).await?;
    if build.target.is_dir() {
        return Ok(Binaries { dir: build.target });
    }
    fs::create_dir_all(&build.partial).map_err(io_error("create", &build.partial))?;
    // One build on a machine at a time: the linkers of two would need 6 GiB. Held until we return.
    let _lock = lock(&cache.join("build.lock"), &mut progress).await?;
    if build.target.is_dir() {
        return Ok(Binaries { dir: build.target });
    }
    fs::create_dir_all(&build.partial).map_err(io_error("create", &build.partial))?;
    for (index, program) in Program::ALL.into_iter().enumerate() {
        build.one(program, index + 1, &mut progress).await?;
    }
    fs::rename(&build.partial, &build.target).map_err(io_error("rename into place", &build.partial))?;
    progress(&format!("Kubernetes {} is built: {}", build.version, build.target.display()));
    Ok(Binaries { dir: build.target })
}

/// The cache folder that [`ensure`] uses.
pub fn cache_dir() -> Result<PathBuf, Error> {
    let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    variable(CACHE_VARIABLE)
        .or_else(|| variable("XDG_CACHE_HOME").map(|d| d.join("muster")))
        .or_else(|| variable("HOME").map(|d| d.join(".cache/muster")))
        .ok_or(Error::NoCache)
}

/// One build of all programs: what from and where to.
struct Build {
    source: PathBuf,
    /// Kubernetes' version as `go.mod` requires it, `v1.37.2`.
    version: String,
    /// What the linker sets and strips.
    linker_flags: String,
    target: PathBuf,
    /// Programs already built of an interrupted build stay here and are not built again.
    partial: PathBuf,
}

impl Build {
    async fn plan(source: &Path, cache: &Path) -> Result<Self, Error> {
        let path = source.join("go.mod");
        let module = fs::read_to_string(&path).map_err(|_| Error::SourceMissing(source.to_owned()))?;
        let field = |line: &'static str| {
            module
                .lines()
                .find_map(|l| l.trim().strip_prefix(line))
                .map(|rest| rest.trim().to_owned())
                .ok_or_else(|| Error::SourceIncomplete { path: path.clone(), line })
        };
        let version = field("k8s.io/kubernetes v")?;
        let go = go_version(source, &field("go ")?).await?;
        let linker_flags = linker_flags(&version);
        let key = key(source, &[&go, &linker_flags])?;
        let target = cache.join("kubernetes").join(format!("v{version}-{key}"));
        let partial = cache.join("kubernetes").join(format!("v{version}-{key}.partial"));
        Ok(Self { source: source.to_owned(), version: format!("v{version}"), linker_flags, target, partial })
    }

    async fn one(
        &self,
        program: Program,
        number: usize,
        progress: &mut (impl FnMut(&str) + Send),
    ) -> Result<(), Error> {
        let (name, total) = (program.name(), Program::ALL.len());
        let done = self.partial.join(name);
        if done.is_file() {
            return Ok(());
        }
        progress(&format!(
            "building {name} {} ({number} of {total}), about {} the first time …",
            self.version,
            program.first_build()
        ));
        let started = Instant::now();
        let log = self.partial.join(format!("{name}.log"));
        let output = File::create(&log).map_err(io_error("create", &log))?;
        let fresh = self.partial.join(format!("{name}.new"));
        let mut child = Command::new("go")
            // Read-only: a build must not edit go.mod. Trimmed, and without the commit: checkouts in
            // different folders share Go's cache.
            .args(["build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", &self.linker_flags])
            .arg("-o")
            .arg(&fresh)
            .arg(format!("./cmd/{name}"))
            .current_dir(&self.source)
            // No C compiler needed, and programs that run on any Linux.
            .envs([("CGO_ENABLED", "0"), ("GOWORK", "off")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .kill_on_drop(true)
            .spawn()
            .map_err(io_error("run go in", &self.source))?;
        let status = loop {
            match tokio::time::timeout(HEARTBEAT, child.wait()).await {
                Ok(status) => break status.map_err(io_error("wait for go in", &self.source))?,
                Err(_) => progress(&format!("  still building {name}, {} s", started.elapsed().as_secs())),
            }
        };
        if !status.success() {
            let (status, tail) = (status.to_string(), logs::tail(&log));
            return Err(Error::Build { program: name, status, log, tail });
        }
        fs::rename(&fresh, &done).map_err(io_error("rename into place", &fresh))?;
        progress(&format!("  {name} took {} s", started.elapsed().as_secs()));
        Ok(())
    }
}

/// The linker's flags: without the versions set the server reports none that a client can use.
fn linker_flags(version: &str) -> String {
    let mut numbers = version.split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let mut flags = vec!["-s -w".to_owned()];
    // The second is what clients of Kubernetes' own name in their user agent.
    for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
        flags.push(format!("-X {package}.gitVersion=v{version}"));
        flags.push(format!("-X {package}.gitMajor={major}"));
        flags.push(format!("-X {package}.gitMinor={minor}"));
    }
    flags.join(" ")
}

/// The Go toolchain that builds in `source` (version, system, architecture), if it is new enough.
async fn go_version(source: &Path, needed: &str) -> Result<String, Error> {
    let output = Command::new("go")
        .args(["env", "GOVERSION", "GOOS", "GOARCH"])
        .current_dir(source)
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => Error::GoMissing(needed.to_owned()),
            _ => io_error("run go in", source)(e),
        })?;
    let text = String::from_utf8_lossy(&output.stdout).trim().replace('\n', " ");
    let found = text.split(' ').next().unwrap_or_default().trim_start_matches("go");
    if numbers(found) < numbers(needed) {
        // A toolchain before 1.21 prints nothing that can be compared, and is too old as well.
        let found = if found.is_empty() { "an unknown version" } else { found };
        return Err(Error::GoTooOld { found: found.to_owned(), needed: needed.to_owned() });
    }
    Ok(text)
}

/// The major and minor number of a version.
fn numbers(version: &str) -> (u32, u32) {
    // A release candidate, `1.26rc1`, has its numbers first.
    let number = |part: Option<&str>| {
        let digits: String = part.unwrap_or_default().chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or(0)
    };
    let mut parts = version.split('.');
    (number(parts.next()), number(parts.next()))
}

/// A hash of everything that decides what the build makes: the module's files and `extra`.
fn key(source: &Path, extra: &[&str]) -> Result<String, Error> {
    let mut files = vec![source.join("go.mod"), source.join("go.sum")];
    go_files(source, &mut files)?;
    files.sort();
    let mut hash = Sha256::new();
    for path in files {
        let content = fs::read(&path).map_err(io_error("read", &path))?;
        let name = path.strip_prefix(source).unwrap_or(&path).to_string_lossy().into_owned();
        // Lengths first, so that no two sets of files give the same bytes.
        hash.update(format!("{name} {}\n", content.len()).as_bytes());
        hash.update(&content);
    }
    for text in extra {
        hash.update(format!("{}\n{text}", text.len()).as_bytes());
    }
    // 64 bits are plenty: nobody attacks their own cache.
    let key = hash.finalize()[..8].iter().fold(0_u64, |key, byte| (key << 8) | u64::from(*byte));
    Ok(format!("{key:016x}"))
}

fn go_files(dir: &Path, into: &mut Vec<PathBuf>) -> Result<(), Error> {
    for entry in fs::read_dir(dir).map_err(io_error("list", dir))? {
        let path = entry.map_err(io_error("list", dir))?.path();
        if path.is_dir() {
            go_files(&path, into)?;
        } else if path.extension().is_some_and(|e| e == "go") {
            into.push(path);
        }
    }
    Ok(())
}

/// Takes the lock in `path`; says so if another process has it. The kernel releases it with the file.
async fn lock(path: &Path, progress: &mut (impl FnMut(&str) + Send)) -> Result<File, Error> {
    let file = File::create(path).map_err(io_error("create", path))?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => {
            progress("another process is building Kubernetes; waiting for it …");
        }
        Err(TryLockError::Error(e)) => return Err(io_error("lock", path)(e)),
    }
    let waiting = tokio::task::spawn_blocking(move || file.lock().map(|()| file));
    waiting.await.map_err(io::Error::other).and_then(|r| r).map_err(io_error("lock", path))
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { what, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert!(numbers("1.9.1") < numbers("1.26.0"));
        assert!(numbers("1.26rc1") >= numbers("1.26.0"));
        assert!(numbers("") < numbers("1.26.0"));
    }

    #[test]
    fn linker_sets_what_servers_report() {
        let flags = linker_flags("1.37.2");
        assert!(flags.contains("-X k8s.io/component-base/version.gitVersion=v1.37.2"), "{flags}");
        assert!(flags.contains("-X k8s.io/component-base/version.gitMinor=37"), "{flags}");
    }
}

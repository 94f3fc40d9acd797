//! The folders of one cluster.
//!
//! ```text
//! work folder   pki/  kubeconfig/  logs/          kept if named by the caller or after a fault
//! data folder   etcd's files, in memory if it can  always removed
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::Error;
use crate::binaries::Program;

/// Numbers the folders that this process makes.
static NEXT: AtomicU32 = AtomicU32::new(0);
/// Folders hold private keys: nobody else may look in.
const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// Memory file system of Linux.
const MEMORY: &str = "/dev/shm";

/// Certificates, kubeconfigs and logs of one cluster.
pub(super) struct WorkDir {
    path: PathBuf,
    /// Made by us for this run, so ours to remove.
    temporary: bool,
}

impl WorkDir {
    /// The folder `path`, or a fresh one among the temporary files.
    pub(super) fn create(path: Option<&Path>) -> Result<Self, Error> {
        let work = match path {
            Some(path) => {
                make_dir(path, true)?;
                let path = fs::canonicalize(path).map_err(Error::io("find", path))?;
                Self { path, temporary: false }
            }
            None => Self { path: fresh_dir(&std::env::temp_dir(), "muster-cluster")?, temporary: true },
        };
        for part in ["pki", "kubeconfig", "logs"] {
            make_dir(&work.path.join(part), true)?;
        }
        Ok(work)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn log(&self, program: Program) -> PathBuf {
        self.path.join("logs").join(format!("{}.log", program.name()))
    }

    pub(super) fn audit_log(&self) -> PathBuf {
        self.path.join("logs/audit.log")
    }

    /// Writes a file that only its owner can read, and gives its path.
    pub(super) fn write(&self, name: &str, content: &str) -> Result<PathBuf, Error> {
        let path = self.path.join(name);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(FILE_MODE);
        options
            .open(&path)
            .and_then(|mut file| file.write_all(content.as_bytes()))
            .map_err(Error::io("write", &path))?;
        Ok(path)
    }

    /// Removes the folder if it was made for this run only.
    pub(super) fn remove_if_temporary(&self) {
        if self.temporary {
            // Nothing depends on it: a file that stays is one more temporary file.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// etcd's folder. Locked while it is used, so that a later start finds and removes what a killed
/// process left in memory.
pub(super) struct DataDir {
    path: PathBuf,
    _owner: File,
}

impl DataDir {
    /// A folder in memory if at least `space` bytes can go there, else below `work`.
    pub(super) fn create(work: &WorkDir, space: u64) -> Result<Self, Error> {
        let base = match memory_base(space) {
            Some(base) => base,
            None => work.path.clone(),
        };
        // One at a time: between making a folder and locking it, it looks abandoned.
        let lock_path = base.join("data.lock");
        let lock = File::create(&lock_path).map_err(Error::io("create", &lock_path))?;
        lock.lock().map_err(Error::io("lock", &lock_path))?;
        remove_abandoned(&base);
        let path = fresh_dir(&base, "etcd")?;
        let owner_path = path.join("owner.lock");
        let owner = File::create(&owner_path).map_err(Error::io("create", &owner_path))?;
        owner.lock().map_err(Error::io("lock", &owner_path))?;
        Ok(Self { path, _owner: owner })
    }

    /// Where etcd keeps its files.
    pub(super) fn etcd(&self) -> PathBuf {
        self.path.join("data")
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        // What an etcd that is still ending writes meanwhile goes at the next start.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn remove_abandoned(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for path in entries.flatten().map(|e| e.path()).filter(|p| p.is_dir()) {
        let abandoned = File::open(path.join("owner.lock")).is_ok_and(|f| f.try_lock().is_ok());
        if abandoned {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// This user's folder in memory, if the file system there holds `space` bytes.
fn memory_base(space: u64) -> Option<PathBuf> {
    let size = memory_size(&fs::read_to_string("/proc/mounts").ok()?)?;
    let user = fs::metadata("/proc/self").ok()?.uid();
    let base = Path::new(MEMORY).join(format!("muster-{user}"));
    make_dir(&base, true).ok()?;
    // Anybody may make folders there: it must be ours, not one that was laid out for us.
    let owner = fs::symlink_metadata(&base).ok()?;
    (size >= space && owner.is_dir() && owner.uid() == user).then_some(base)
}

/// The size in bytes of the file system in memory, from the mount table. Containers often get 64 MiB.
fn memory_size(mounts: &str) -> Option<u64> {
    let mut fields = mounts
        .lines()
        .map(|line| line.split_whitespace())
        .find_map(|mut f| (f.nth(1) == Some(MEMORY) && f.next() == Some("tmpfs")).then_some(f))?;
    let size = fields.next()?.split(',').find_map(|option| option.strip_prefix("size="))?;
    let digits = size.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &size[digits.len()..] {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn fresh_dir(base: &Path, prefix: &str) -> Result<PathBuf, Error> {
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("{prefix}-{}-{number}", std::process::id()));
        match make_dir(&path, false) {
            Ok(()) => return Ok(path),
            // Left by an earlier process of our number.
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
}

fn make_dir(path: &Path, may_exist: bool) -> Result<(), Error> {
    let mut builder = fs::DirBuilder::new();
    builder.mode(DIR_MODE).recursive(may_exist).create(path).map_err(Error::io("create", path))
}

#[cfg(test)]
mod tests {
    use super::memory_size;

    #[test]
    fn size_of_memory_is_read_from_the_mount_table() {
        let table = "proc /proc proc rw 0 0\nshm /dev/shm tmpfs rw,nosuid,size=65536k 0 0\n";
        assert_eq!(memory_size(table), Some(64 << 20));
        assert_eq!(memory_size("none /dev/shm tmpfs rw 0 0"), None);
        assert_eq!(memory_size("/dev/sda /dev/shm ext4 rw,size=9g 0 0"), None);
    }
}

//! A limit on the memory of one process, as its container has it: a control group of its own.

use std::fs;
use std::path::PathBuf;

use super::names;
use super::not_tested::not_tested;

/// The memory controller's folder where control groups are of version 1, or of version 2.
const VERSION_1: &str = "/sys/fs/cgroup/memory";
const VERSION_2: &str = "/sys/fs/cgroup";

/// A control group with a limit. Its processes must have ended when it is dropped.
#[derive(Debug)]
pub struct MemoryLimit {
    folder: PathBuf,
    is_version_1: bool,
}

impl MemoryLimit {
    /// A group that may occupy so many bytes. `None`, noted as not tested, where no group can be made.
    pub fn new(bytes: u64) -> Option<Self> {
        let is_version_1 =
            fs::exists(format!("{VERSION_1}/memory.limit_in_bytes")).unwrap_or(false);
        let parent = if is_version_1 { VERSION_1 } else { VERSION_2 };
        let folder = PathBuf::from(parent).join(names::unique("postdate-limit"));
        let file = if is_version_1 {
            "memory.limit_in_bytes"
        } else {
            "memory.max"
        };
        let made =
            fs::create_dir(&folder).and_then(|()| fs::write(folder.join(file), bytes.to_string()));
        if let Err(error) = made {
            drop(fs::remove_dir(&folder));
            not_tested(
                "the limit on memory",
                &format!("no control group can be made here: {error}"),
            );
            return None;
        }
        Some(Self {
            folder,
            is_version_1,
        })
    }

    /// Puts a process under the limit.
    pub fn hold(&self, process: u32) {
        fs::write(self.folder.join("cgroup.procs"), process.to_string())
            .expect("a process of this group");
    }

    /// Processes that were killed for exceeding the limit.
    pub fn kills(&self) -> u64 {
        let file = if self.is_version_1 {
            "memory.oom_control"
        } else {
            "memory.events"
        };
        let text = fs::read_to_string(self.folder.join(file)).expect("the group's events");
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count
            .and_then(|count| count.trim().parse().ok())
            .expect("a count of kills")
    }

    /// Most bytes that were occupied at once.
    pub fn peak(&self) -> u64 {
        let file = if self.is_version_1 {
            "memory.max_usage_in_bytes"
        } else {
            "memory.peak"
        };
        let text = fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // Fails while a process is still ending; an empty group costs nothing.
        drop(fs::remove_dir(&self.folder));
    }
}

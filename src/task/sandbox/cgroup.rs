//! Control groups of version 2: limits on the memory and the processes of a whole sandbox, on machines that let Grove
//! create groups. Resource limits hold for each process alone, and root is exempt from the one on processes.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

/// Prefix of the groups' names; Grove's process id follows.
const NAME_PREFIX: &str = "grove-sandbox-";

/// Finds the groups in which Grove may be able to create others: its own and those that contain it, the nearest first.
pub fn find_possible_parents() -> Vec<PathBuf> {
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    find_own_and_ancestors(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"))
}

/// Finds the folder of the process's own group and its ancestors, from the contents of `/proc/self/mountinfo` and
/// `/proc/self/cgroup`.
fn find_own_and_ancestors(mounts: &str, groups: &str) -> Vec<PathBuf> {
    let mount = mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut fields = place.split(' ').skip(3);
        let (root, mount_point) = (fields.next()?, fields.next()?);
        kind.starts_with("cgroup2 ").then_some((root, Path::new(mount_point)))
    });
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let (Some((root, mount_point)), Some(group)) = (mount, group) else { return Vec::new() };
    // A container's mount may begin at its own group.
    let within = Path::new("/").join(group);
    let folder = mount_point.join(within.strip_prefix(root).unwrap_or(Path::new("")));
    let ancestors = folder.ancestors().take_while(|folder| folder.starts_with(mount_point));
    ancestors.map(Path::to_path_buf).collect()
}

/// The memory of the machine, bytes.
fn machine_memory_bytes() -> u64 {
    // SAFETY: these calls have no preconditions.
    let counts =
        [libc::_SC_PHYS_PAGES, libc::_SC_PAGESIZE].map(|name| unsafe { libc::sysconf(name) });
    counts.into_iter().map(|count| count.unsigned_abs()).product()
}

/// Removes the groups in `parent` that killed processes have left behind.
fn remove_stale_groups(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner =
            name.to_str().and_then(|name| name.strip_prefix(NAME_PREFIX)?.split('-').next());
        if owner.is_some_and(|id| !Path::new("/proc").join(id).exists()) {
            // A group that still has processes stays.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// A group for all processes of a sandbox, removed when dropped.
#[derive(Debug)]
pub struct ControlGroup {
    folder: PathBuf,
    /// The file by which processes join the group.
    procs_file: File,
}

impl ControlGroup {
    /// Creates a group in the folder `parent`, with those of the limits that `parent` has controllers for: at most
    /// `max_processes` processes, and three quarters of the machine's memory.
    ///
    /// # Errors
    /// The system's, for instance if there is a controller for neither limit.
    pub fn new(parent: &Path, max_processes: u64) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        remove_stale_groups(parent);
        let folder = loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let folder = parent.join(format!("{NAME_PREFIX}{}-{count}", std::process::id()));
            match fs::create_dir(&folder) {
                Ok(()) => break folder,
                // Left by another process with the same id, as a container's first one has.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        };
        let open = |file: &str| File::options().write(true).open(folder.join(file));
        let set_limits = || {
            let set = |file: &str, value: u64| open(file)?.write_all(value.to_string().as_bytes());
            let limits =
                [set("pids.max", max_processes), set("memory.max", machine_memory_bytes() / 4 * 3)];
            limits.into_iter().reduce(Result::or).expect("two")?;
            open("cgroup.procs")
        };
        match set_limits() {
            Ok(procs_file) => Ok(Self { folder, procs_file }),
            Err(error) => {
                let _ = fs::remove_dir(&folder);
                Err(error)
            }
        }
    }

    /// Moves the current process into the group.
    ///
    /// # Safety
    /// Only between `fork` and `exec`.
    pub unsafe fn join(&self) -> io::Result<()> {
        (&self.procs_file).write_all(b"0")
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // Processes that were just killed may take a moment to end. The next group removes what remains.
        for _ in 0..100 {
            match fs::remove_dir(&self.folder) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    thread::sleep(Duration::from_millis(5));
                }
                _ => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_groups_are_found_on_hosts_and_in_containers() {
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        let v1 = "35 31 0:32 / /sys/fs/cgroup/pids rw shared:9 - cgroup cgroup rw,pids\n";
        let host =
            format!("{v1}30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n");
        let group = "4:pids:/other\n0::/user.slice/app.scope\n";
        let folders =
            ["/sys/fs/cgroup/user.slice/app.scope", "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup"];
        assert_eq!(find_own_and_ancestors(&host, group), paths(&folders));
        assert_eq!(find_own_and_ancestors(v1, group), paths(&[]));
        assert_eq!(find_own_and_ancestors(&host, "4:pids:/other\n"), paths(&[]));
        // A namespace of groups, and a mount that begins at the container's group.
        assert_eq!(find_own_and_ancestors(&host, "0::/\n"), paths(&["/sys/fs/cgroup"]));
        let within = "30 23 0:26 /docker/1 /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
        assert_eq!(find_own_and_ancestors(within, "0::/docker/1\n"), paths(&["/sys/fs/cgroup"]));
        assert_eq!(
            find_own_and_ancestors(within, "0::/docker/1/a\n"),
            paths(&["/sys/fs/cgroup/a", "/sys/fs/cgroup"])
        );
    }

    #[test]
    fn groups_of_ended_processes_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let folder = |id: u32| parent.path().join(format!("{NAME_PREFIX}{id}-0"));
        // Above the largest process id.
        for id in [std::process::id(), 1 << 30] {
            fs::create_dir(folder(id)).unwrap();
        }
        remove_stale_groups(parent.path());
        assert!(folder(std::process::id()).exists());
        assert!(!folder(1 << 30).exists());
    }

    #[test]
    fn groups_of_another_process_with_the_same_id_are_passed_over() {
        let parent = tempfile::tempdir().unwrap();
        for count in 0..1000 {
            let name = format!("{NAME_PREFIX}{}-{count}", std::process::id());
            fs::create_dir(parent.path().join(name)).unwrap();
        }
        // An ordinary folder has no controllers.
        let error = ControlGroup::new(parent.path(), 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}

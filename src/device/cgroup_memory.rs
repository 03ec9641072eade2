//! The memory of a container: the limits of its control groups, which may be below the machine's.

use std::fs;
use std::path::Path;

/// Memory limit of this process and the memory still available to it, each the minimum over its control groups (v1 or
/// v2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CgroupMemory {
    /// The limit.
    pub limit_bytes: u64,
    /// The rest of the limit.
    pub available_bytes: u64,
}

/// Reads the memory limits of this process's control groups; `None` if it has none.
pub fn read() -> Option<CgroupMemory> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    read_strictest(&groups, Path::new("/sys/fs/cgroup"))
}

/// Reads the strictest limits of the `groups` of `/proc/self/cgroup`, mounted below `root`.
fn read_strictest(groups: &str, root: &Path) -> Option<CgroupMemory> {
    let limits = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        match controllers {
            "" => read_group(root, path, &V2),
            _ if controllers.split(',').any(|name| name == "memory") => {
                read_group(&root.join("memory"), path, &V1)
            }
            _ => None,
        }
    });
    limits.reduce(combine_limits)
}

/// Takes the minimum of each field, which may come from different groups.
fn combine_limits(a: CgroupMemory, b: CgroupMemory) -> CgroupMemory {
    CgroupMemory {
        limit_bytes: a.limit_bytes.min(b.limit_bytes),
        available_bytes: a.available_bytes.min(b.available_bytes),
    }
}

/// Names under which a version of control groups reports memory.
struct FileNames {
    /// File with the limit.
    limit: &'static str,
    /// File with the memory in use.
    usage: &'static str,
    /// Entry of `memory.stat` with the part of the usage that the kernel takes back when needed: files not read lately.
    cached: &'static str,
}

/// Names of version 1.
const V1: FileNames = FileNames {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cached: "total_inactive_file",
};
/// Names of version 2.
const V2: FileNames =
    FileNames { limit: "memory.max", usage: "memory.current", cached: "inactive_file" };

/// Reads the strictest limits of a group and its ancestors. In a container, `path` may be a path of the host, which is
/// missing here; the mount itself is then the container's group.
fn read_group(mount: &Path, path: &str, names: &FileNames) -> Option<CgroupMemory> {
    let group = mount.join(path.trim_start_matches('/'));
    let groups = group.ancestors().take_while(|folder| folder.starts_with(mount));
    let limits = groups.filter_map(|folder| {
        let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
        let read_number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        // Version 1 expresses no limit by a number beyond all memory.
        let limit_bytes = read_number(names.limit).filter(|limit| *limit < 1 << 60)?;
        let stat = read("memory.stat").unwrap_or_default();
        let entry = |line: &str| line.strip_prefix(names.cached)?.trim().parse::<u64>().ok();
        let cached = stat.lines().find_map(entry).unwrap_or(0);
        let used = read_number(names.usage).unwrap_or(0).saturating_sub(cached);
        let available_bytes = limit_bytes.saturating_sub(used);
        Some(CgroupMemory { limit_bytes, available_bytes })
    });
    limits.reduce(combine_limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strictest_control_group_counts() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let memory =
            |limit_bytes, available_bytes| Some(CgroupMemory { limit_bytes, available_bytes });
        let write = |path: &str, text: &str| {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), text).unwrap();
        };
        assert_eq!(read_strictest("0::/a/b\n", root), None);
        write("a/b/memory.max", "max\n");
        write("a/memory.max", "400\n");
        write("a/memory.current", "150\n");
        assert_eq!(read_strictest("0::/a/b\n", root), memory(400, 250));
        // A group that shares less than its own limit with others.
        write("a/b/memory.max", "300\n");
        write("a/b/memory.current", "20\n");
        assert_eq!(read_strictest("0::/a/b\n", root), memory(300, 250));
        write("a/memory.stat", "file 90\ninactive_file 30\nactive_file 60\n");
        assert_eq!(read_strictest("0::/a/b\n", root), memory(300, 280));
        write("memory/c/memory.limit_in_bytes", "9223372036854771712\n");
        write("memory/memory.limit_in_bytes", "300\n");
        write("memory/memory.usage_in_bytes", "100\n");
        assert_eq!(read_strictest("4:cpu:/c\n3:memory:/c\n0::/a/b\n", root), memory(300, 200));
        assert_eq!(read_strictest("3:memory:/docker/gone\n", root), memory(300, 200));
    }
}
